"""Write a corpus of text as shards: ``python -m examples.language.write_shards --out FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.array_cache import default_cache_dir
from examples.language.corpora.folder import build_folder_documents
from examples.language.corpora.stdlib import build_stdlib_documents
from examples.language.corpus import DEFAULT_BPE_SIZE, Corpus, tokenise
from examples.language.documents import SPLITS
from examples.language.shards import write_shard
from examples.language.vocabulary import BPEVocabulary


def write_corpus(corpus: Corpus, out: str | Path, *, shard_tokens: int) -> list[Path]:
    """Write ``train_00000.bin`` and so on, and ``tokenizer.json`` if the vocabulary is a BPE.

    Args:
        corpus: corpus to write.
        out: folder of the files. It is created if it does not exist.
        shard_tokens: maximum number of tokens of a file.

    Returns:
        The paths of the shards, in the order of the splits.

    Raises:
        ValueError: ``shard_tokens`` is below 1.

    """
    if shard_tokens < 1:
        raise ValueError(f"shard_tokens must be at least 1, got {shard_tokens}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for split in SPLITS:
        stream = corpus.splits[split]
        for number, start in enumerate(range(0, len(stream), shard_tokens)):
            path = folder / f"{split}_{number:05d}.bin"
            tokens = stream.read(start, start + shard_tokens)
            write_shard(path, tokens.astype(corpus.vocabulary.dtype))
            paths.append(path)
    if isinstance(corpus.vocabulary, BPEVocabulary):
        (folder / "tokenizer.json").write_text(corpus.vocabulary.definition, encoding="utf-8")
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Tokenise a folder or the standard library, and write the shards."""
    parser = argparse.ArgumentParser(prog="python -m examples.language.write_shards")
    parser.add_argument("--out", required=True, help="folder of the shards")
    parser.add_argument("--path", help="folder of text files (default: the standard library)")
    parser.add_argument(
        "--pattern", default="**/*.txt", help="pattern of the files in --path (default: **/*.txt)"
    )
    parser.add_argument(
        "--tokenizer",
        default="bpe",
        help="bytes, bpe (trained on the train split) or a tokenizer.json (default: bpe)",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=int,
        default=DEFAULT_BPE_SIZE,
        help="number of tokens of a BPE (default: %(default)s)",
    )
    parser.add_argument(
        "--shard-tokens",
        type=int,
        default=100_000_000,
        help="maximum number of tokens of a shard (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        documents = (
            build_stdlib_documents()
            if options.path is None
            else build_folder_documents(path=options.path, pattern=options.pattern)
        )
        corpus = tokenise(
            documents,
            tokenizer=options.tokenizer,
            vocabulary_size=options.vocabulary_size,
            cache_dir=default_cache_dir(),
        )
        paths = write_corpus(corpus, options.out, shard_tokens=options.shard_tokens)
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    counts = ", ".join(f"{len(corpus.splits[split])} {split}" for split in SPLITS)
    print(f"{len(paths)} shards in {options.out}: {counts} tokens of {corpus.vocabulary.size}")


if __name__ == "__main__":
    main()
