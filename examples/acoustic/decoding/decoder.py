"""Viterbi decoding of senone scores to words over a decoding graph."""

from __future__ import annotations

import numpy as np
from kaldi_decoder import DecodableCtc, FasterDecoder, FasterDecoderOptions
from kaldifst import get_linear_symbol_sequence
from torch import Tensor

from examples.acoustic.decoding.graph import HMMTopology, build_graph
from examples.acoustic.decoding.language_model import Grammar
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SILENCE, SenoneMap


class WFSTDecoder:
    """Hybrid decoder from log likelihoods of senones to the best sequence of words.

    Every rank builds its decoder from senones, lexicon and grammar, so decoders are never pickled.
    """

    def __init__(
        self,
        senones: SenoneMap,
        lexicon: Lexicon,
        grammar: Grammar,
        *,
        topology: HMMTopology | None = None,
        beam: float = 16.0,
        max_active: int = 7000,
        acoustic_scale: float = 0.5,
        word_insertion_penalty: float = 0.0,
        silence_phone: str = SILENCE,
    ) -> None:
        """Build the decoding graph.

        Args:
            senones: numbering of the senones of the acoustic model.
            lexicon: pronunciations of at least the words of the grammar.
            grammar: grammar over words.
            topology: transition probabilities. The default ``HMMTopology()`` is for 100 frames/s,
                ``HMMTopology.for_low_frame_rate()`` for 33 frames/s.
            beam: largest difference in cost between a path and the best path.
            max_active: largest number of active states in a frame.
            acoustic_scale: factor of the log likelihoods. It is below 1, because adjacent frames
                are not independent: about 0.15 at 100 frames/s, and 0.5 at 33 frames/s.
            word_insertion_penalty: cost that is added to each word. It may be negative.
            silence_phone: phone of optional silence.

        Raises:
            KeyError: words of the grammar have no pronunciation.
            ValueError: ``beam``, ``acoustic_scale`` or ``max_active`` is not positive, or phones
                have no senones.
        """
        for name, value in (
            ("beam", beam),
            ("max_active", max_active),
            ("acoustic_scale", acoustic_scale),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        self.senones = senones
        self.acoustic_scale = acoustic_scale
        self.graph = build_graph(
            senones,
            lexicon,
            grammar,
            topology=topology or HMMTopology(),
            word_insertion_penalty=word_insertion_penalty,
            silence_phone=silence_phone,
        )
        self._options = FasterDecoderOptions(beam=beam, max_active=max_active)

    def decode(self, log_likelihoods: Tensor) -> list[str]:
        """Return the words of the best path.

        If no path in the beam ends in a final state of the grammar, the best partial path is used.

        Args:
            log_likelihoods: (T, S) natural logarithms of likelihoods, up to a constant for each
                frame.

        Raises:
            ValueError: the shape is wrong, there are no frames, or values are not finite.
        """
        labels = self._best_path(log_likelihoods)[1]
        return [self.graph.words[label - 1] for label in labels]

    def decode_with_senones(self, log_likelihoods: Tensor) -> tuple[list[str], list[int]]:
        """Return the words and the senone of each frame of the best path. See :meth:`decode`."""
        inputs, outputs = self._best_path(log_likelihoods)
        return [self.graph.words[o - 1] for o in outputs], [i - 1 for i in inputs]

    def _best_path(self, log_likelihoods: Tensor) -> tuple[list[int], list[int]]:
        decodable = DecodableCtc(self._scaled(log_likelihoods))
        # A new decoder for each utterance, because a decoder keeps the paths of the last one.
        decoder = FasterDecoder(self.graph.fst, self._options)
        decoder.decode(decodable)
        succeeded, path = decoder.get_best_path(use_final_probs=decoder.reached_final())
        if not succeeded:
            raise ValueError(
                f"no path through the graph survived {log_likelihoods.shape[0]} frames; the "
                "utterance is shorter than any sentence of the grammar, or the beam is too narrow"
            )
        _, inputs, outputs, _ = get_linear_symbol_sequence(path)
        return inputs, outputs

    def _scaled(self, log_likelihoods: Tensor) -> np.ndarray:
        columns = len(self.senones)
        if log_likelihoods.dim() != 2 or log_likelihoods.shape[1] != columns:
            raise ValueError(
                f"log_likelihoods must have shape (frames, {columns}), one column per senone, got "
                f"{tuple(log_likelihoods.shape)}"
            )
        if log_likelihoods.shape[0] == 0:
            raise ValueError("log_likelihoods must have at least one frame, got none")
        scores = (log_likelihoods.detach().float() * self.acoustic_scale).cpu()
        if not bool(scores.isfinite().all()):
            raise ValueError("log_likelihoods must be finite, got NaN or infinity")
        return np.ascontiguousarray(scores.numpy())
