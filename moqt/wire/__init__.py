"""Incremental codecs of MOQT draft 22."""
