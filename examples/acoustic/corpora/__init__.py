"""Where speech comes from: synthesis, AN4, manifests of audio files, Kaldi directories."""
