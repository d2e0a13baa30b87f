"""A stand-in CUDA runtime: PyTorch's own CUDA code, allocator and errors on a machine without a GPU.

``librig.so`` is preloaded and answers the runtime, cuBLAS and cuDNN functions that torch's libraries import;
``libcuda.so.1`` and ``libnvidia-ml.so.1`` are found first on ``LD_LIBRARY_PATH``.  ``torch.cuda.is_available()`` is
True, tensors live on ``cuda``, and the real caching allocator runs over a ``cudaMalloc`` that counts against a card
which several processes can share.  Kernels do not run.

What is true here: which allocations PyTorch makes and in which order, the allocator's figures, the texts and types of
errors, what NVML tells, what a fork may do, what comes back when a process dies.

What is not: values (kernels leave memory as it was, so losses mean nothing and an operator whose output size depends on
values gets a nonsense size), time, the workspaces of the real cuBLAS and cuDNN (only the knobs), the bytes of a real
context.  Not there, and refused with "not supported": CUDA graphs, expandable segments, ``cudaMallocAsync``, sharing
of CUDA tensors between processes, cuDNN's CTC loss.  One card only.

    card      the card's memory in a file               calls     driver, context, errors, planned failures
    memory    cudaMalloc, copies                        device    properties
    streams   streams, events, launches                 cublas, cudnn, driver, nvml    the other libraries
    recurrent cuDNN's recurrent networks
    stubs     what is left of torch's imports           build     compiles it all
    hold      the other process on the card             forked    a process for each test's program
"""
