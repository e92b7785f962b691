"""Sources of speech: synthesis, AN4, manifests of audio files, and Kaldi data directories."""
