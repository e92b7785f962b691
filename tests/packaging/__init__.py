"""Tests of the wheel and the source archive, as users without a checkout install them."""
