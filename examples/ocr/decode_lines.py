"""A callback that adds beam search with a language model to the character model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from lightning.pytorch import Callback, LightningModule, Trainer

from examples.ocr.alphabet import Alphabet
from examples.ocr.line_reader import LineDecoder, LineReader

if TYPE_CHECKING:
    from examples.ocr.decoding.beam import BeamOptions

LanguageModel = Literal["hybrid", "words", "characters"]


class DecodeLines(Callback):
    """Decode by beam search in test and prediction, in addition to best path.

    Every rank estimates the language model from the texts of the train split, without
    communication. The texts come from the trainer's data module or from the checkpoint. The model
    logs the error rates of beam search and of best path. Beam search takes 0.3 seconds of a core or
    more for each line, much longer than best path. The callback requires flashlight-text.

    Args:
        language_model: units of the 2-gram model. ``"hybrid"``: words, and characters for unknown
            words. ``"words"``: words of the training texts only. ``"characters"``: characters.
        lm_weight: weight of the language model relative to the network.
        word_score: score added for each word, for ``"words"`` only.
        beam_size: number of hypotheses that are kept per frame.
        beam_size_token: number of outputs that are considered per frame.
        beam_threshold: maximum difference to the best hypothesis in nats. Hypotheses with a larger
            difference are dropped.

    Raises:
        ValueError: if the language model is unknown.
    """

    def __init__(
        self,
        *,
        language_model: LanguageModel = "hybrid",
        lm_weight: float = 0.5,
        word_score: float = 0.0,
        beam_size: int = 50,
        beam_size_token: int = 20,
        beam_threshold: float = 25.0,
    ) -> None:
        if language_model not in get_args(LanguageModel):
            raise ValueError(
                f"language_model must be one of {get_args(LanguageModel)}, got {language_model!r}"
            )
        self.language_model = language_model
        self.options: dict[str, Any] = {
            "lm_weight": lm_weight,
            "word_score": word_score,
            "beam_size": beam_size,
            "beam_size_token": beam_size_token,
            "beam_threshold": beam_threshold,
        }

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the decoder of the model, unless the model already has one."""
        model = cast(LineReader, pl_module)
        if model.decoder is None:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            model.decoder = self.build(data.alphabet, data.texts)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the decoder of the model, unless the model already has one."""
        self.on_test_start(trainer, pl_module)

    def build(self, alphabet: Alphabet, texts: Iterable[str]) -> LineDecoder:
        """Return a decoder with a language model estimated from ``texts``.

        Raises:
            ImportError: if flashlight-text is not installed.
        """
        from examples.ocr.decoding import beam

        options: BeamOptions = beam.BeamOptions(**self.options)
        if self.language_model == "words":
            return beam.WordBeam(alphabet, texts, options)
        if self.language_model == "characters":
            return beam.CharacterBeam(alphabet, texts, options)
        return beam.HybridBeam(alphabet, texts, options)
