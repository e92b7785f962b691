"""A callback that gives the character model a beam search for its own corpus."""

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
    """Decode by beam search in test and prediction, so that the model logs its error rates.

    Every rank counts the language model from the texts that the model was trained on, which the
    trainer's data module has from the train split or from the checkpoint, so nothing is sent.
    flashlight-text is needed once this callback is used. A beam search takes a core 0.3 seconds or
    more for each line, far longer than the best path, which is logged in any case.

    Args:
        language_model: ``"hybrid"`` over words, with others spelt; ``"words"`` of the training
            texts and no others; or ``"characters"``.
        lm_weight: of the language model against the network.
        word_score: added per word, in ``"words"`` only.
        beam_size: hypotheses kept per frame.
        beam_size_token: outputs tried per frame.
        beam_threshold: hypotheses worse than the best by more than this are dropped, in nats.

    Raises:
        ValueError: an unknown language model.
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
        """Set the model's decoder, unless it has one."""
        model = cast(LineReader, pl_module)
        if model.decoder is None:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            model.decoder = self.build(data.alphabet, data.texts)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the model's decoder, unless it has one."""
        self.on_test_start(trainer, pl_module)

    def build(self, alphabet: Alphabet, texts: Iterable[str]) -> LineDecoder:
        """Return a decoder with a language model counted from ``texts``.

        Raises:
            ImportError: flashlight-text is not installed.
        """
        from examples.ocr.decoding import beam

        options: BeamOptions = beam.BeamOptions(**self.options)
        if self.language_model == "words":
            return beam.WordBeam(alphabet, texts, options)
        if self.language_model == "characters":
            return beam.CharacterBeam(alphabet, texts, options)
        return beam.HybridBeam(alphabet, texts, options)
