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
    """Hybrid decoder: log likelihoods of senones in, the best sequence of words out.

    Built from plain data, so that every rank builds its own and nothing is pickled.
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
        """Build the graph; see ``build_graph`` for what may be wrong with its parts.

        Args:
            senones: all states that the acoustic model knows.
            lexicon: pronunciations of at least the grammar's words.
            grammar: which word may follow which.
            topology: transition probabilities; by default ``HMMTopology()``, which is meant for
                100 frames/s. ``HMMTopology.for_low_frame_rate()`` is for 33 frames/s.
            beam: paths that cost more than the best one by this much are given up.
            max_active: at most this many paths are kept per frame.
            acoustic_scale: factor of the log likelihoods against the other costs. Below 1, as
                neighbouring frames are not independent: about 0.15 at 100 frames/s, 0.5 at 33.
            word_insertion_penalty: added to the cost of each word; may be negative.
            silence_phone: the phone of optional silence.

        Raises:
            ValueError: a beam, an acoustic scale or max_active that is not positive.
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

        Where no path has come to an end of the grammar within the beam, the best unfinished path
        counts, as it does for a recording that breaks off.

        Args:
            log_likelihoods: (T, S), in natural logarithm; only differences within a frame matter.

        Raises:
            ValueError: another shape, no frames, or values that are not finite.
        """
        labels = self._best_path(log_likelihoods)[1]
        return [self.graph.words[label - 1] for label in labels]

    def decode_with_senones(self, log_likelihoods: Tensor) -> tuple[list[str], list[int]]:
        """Return the words and, per frame, the senone of the best path; see ``decode``."""
        inputs, outputs = self._best_path(log_likelihoods)
        return [self.graph.words[o - 1] for o in outputs], [i - 1 for i in inputs]

    def _best_path(self, log_likelihoods: Tensor) -> tuple[list[int], list[int]]:
        decodable = DecodableCtc(self._scaled(log_likelihoods))
        # A decoder of its own per utterance: it holds the paths of the utterance before.
        decoder = FasterDecoder(self.graph.fst, self._options)
        decoder.decode(decodable)
        found, path = decoder.get_best_path(use_final_probs=decoder.reached_final())
        if not found:
            raise ValueError(
                f"no path through the graph survived {log_likelihoods.shape[0]} frames; the "
                "utterance is shorter than any sentence of the grammar, or the beam is too narrow"
            )
        _, inputs, outputs, _ = get_linear_symbol_sequence(path)
        return inputs, outputs

    def _scaled(self, log_likelihoods: Tensor) -> np.ndarray:
        wanted = len(self.senones)
        if log_likelihoods.dim() != 2 or log_likelihoods.shape[1] != wanted:
            raise ValueError(
                f"log_likelihoods must have shape (frames, {wanted}), one column per senone, got "
                f"{tuple(log_likelihoods.shape)}"
            )
        if log_likelihoods.shape[0] == 0:
            raise ValueError("log_likelihoods must have at least one frame, got none")
        scores = (log_likelihoods.detach().float() * self.acoustic_scale).cpu()
        if not bool(scores.isfinite().all()):
            raise ValueError("log_likelihoods must be finite, got NaN or infinity")
        return np.ascontiguousarray(scores.numpy())
