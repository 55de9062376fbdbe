/* main.c [ONE-IN] - the checks of the CUDA kernels where these run on the host (on_host/cuda_runtime.h), on
 * one vector in so many. */
#include "tests/kernels/cuda/device_check.h"

unsigned check_one_in = 1;

int main(int argc, char **argv)
{
    char text[200];
    if (!check_device_open(text, sizeof text)) return 1;
    if (argc > 1) check_one_in = (unsigned)strtoul(argv[1], NULL, 10);
    if (check_one_in == 0) return 2;
    const int failed = check_elementwise() + check_segments() + check_select() + check_products();
    return failed + check_optimizer() != 0;
}
