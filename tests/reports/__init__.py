"""Situations that users of such services met, as data, and what plays them."""
