/* mpi_all_reduce.c - an MPI library's all_reduce beside `weft bench all_reduce --json`: f32 sum, each size out of place and in
 * place, the mean over the ranks of the mean time of one operation. Built where pkg-config knows Open MPI. Started by
 * tools/peers/all_reduce.py, or: mpirun -n 2 mpi_all_reduce ITERS SIZE... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double time_size(float *in, float *out, int count, int iters)
{
    double sum = 0, mean = 0;
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = -5; i < iters; i++) {
        if (i == 0) MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        MPI_Allreduce(in ? in : MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) sum += MPI_Wtime() - began;
    }
    MPI_Allreduce(&sum, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return 1e6 * mean / iters / ranks;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks, iters = argc > 1 ? atoi(argv[1]) : 20;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int a = 2; a < argc; a++) {
        long bytes = atol(argv[a]);
        float *in = calloc(1, (size_t)bytes), *out = calloc(1, (size_t)bytes);
        if (!in || !out || bytes < 4) MPI_Abort(MPI_COMM_WORLD, 1);
        double apart = time_size(in, out, (int)(bytes / 4), iters), in_place = time_size(NULL, out, (int)(bytes / 4), iters);
        if (rank == 0)
            printf("{\"op\":\"all_reduce\",\"ranks\":%d,\"size\":%ld,\"time_us\":%.3f,\"in_place\":{\"time_us\":%.3f}}\n", ranks, bytes, apart,
                   in_place);
        free(in);
        free(out);
    }
    MPI_Finalize();
    return 0;
}
