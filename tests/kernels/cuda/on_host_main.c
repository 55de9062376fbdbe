/* on_host_main.c - the checks of the CUDA kernels where these run on the host (on_host/cuda_runtime.h). */
#include "tests/kernels/cuda/device_check.h"

int main(void)
{
    char text[200];
    if (!device_open(text, sizeof text)) return 1;
    return check_elementwise() != 0;
}
