"""Seeing how the host's work hid behind the device: recording, files, reading, conclusions, pictures.

`recorder` is what the actors hold, `pump` and `trace_file` write what it holds to disk, `reader` and
`validation` read a file back, `steps`, `gaps` and `summary` conclude, `picture` draws.
"""
