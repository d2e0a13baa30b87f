"""Predictions against published measurements: what was run, the same step simulated, and how far off it is.

``rows``    the CSV files as values, each row with the protocol of its source.  No torch.
``models``  a row's model and batch, from its library's configuration; nothing is downloaded.
``step``    the protocol's training step on a simulated device, as a trace.
``answer``  what the traces say to a row's question: a peak, the least capacity, fits or not.
``scores``  rows with their answers, to statistics and a table.  No torch.
"""
