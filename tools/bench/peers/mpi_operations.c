/* mpi_operations.c - operations of an MPI library for comparison with `weft bench --json`: f32 sums, each
 * size out of place and, if MPI has that, in place; the mean over the ranks of the mean time of one
 * operation. Sizes are those of weft bench and nccl-tests. Built once with Open MPI and once with MPICH, as
 * far as they are installed.
 *
 * Started by tools/bench/peers/operations.py, or: mpirun -n 2 mpi_operations OP SIZE:ITERS... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_S 1.0 /* limit of one timing, seconds: slow operations run fewer times */

static int rank, ranks;

struct buffers {
    float *in, *out;
    int *counts, count, piece; /* count: elements of the buffer; piece: of the piece of a rank */
};

static int ring_neighbour(int step)
{
    return (rank + ranks + step) % ranks;
}

/* One operation. 0: no operation of this name, or none in place. The test of the name precedes the call and
 * is part of the timed call. */
typedef void operation(const struct buffers *b, int in_place);

static void all_reduce(const struct buffers *b, int in_place)
{
    MPI_Allreduce(in_place ? MPI_IN_PLACE : b->in, b->out, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void reduce_scatter(const struct buffers *b, int in_place)
{
    MPI_Reduce_scatter(in_place ? MPI_IN_PLACE : b->in, b->out, b->counts, MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
}
static void reduce_scatter_block(const struct buffers *b, int in_place)
{
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : b->in, b->out, b->piece, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
}
static void all_gather(const struct buffers *b, int in_place)
{
    MPI_Allgather(in_place ? MPI_IN_PLACE : b->in, b->piece, MPI_FLOAT, b->out, b->piece, MPI_FLOAT,
                  MPI_COMM_WORLD);
}
static void broadcast(const struct buffers *b, int in_place)
{
    (void)in_place;
    MPI_Bcast(b->out, b->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void reduce(const struct buffers *b, int in_place)
{
    const void *from = in_place ? rank == 0 ? MPI_IN_PLACE : b->out : b->in;
    MPI_Reduce(from, b->out, b->count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static void gather(const struct buffers *b, int in_place)
{
    MPI_Gather(in_place && rank == 0 ? MPI_IN_PLACE : b->in, b->piece, MPI_FLOAT, b->out, b->piece, MPI_FLOAT,
               0, MPI_COMM_WORLD);
}
static void scatter(const struct buffers *b, int in_place)
{
    MPI_Scatter(b->in, b->piece, MPI_FLOAT, in_place && rank == 0 ? MPI_IN_PLACE : b->out, b->piece,
                MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void all_to_all(const struct buffers *b, int in_place)
{
    MPI_Alltoall(in_place ? MPI_IN_PLACE : b->in, b->piece, MPI_FLOAT, b->out, b->piece, MPI_FLOAT,
                 MPI_COMM_WORLD);
}
static void barrier(const struct buffers *b, int in_place)
{
    (void)b;
    (void)in_place;
    MPI_Barrier(MPI_COMM_WORLD);
}
static void sendrecv(const struct buffers *b, int in_place)
{
    (void)in_place;
    MPI_Sendrecv(b->in, b->count, MPI_FLOAT, ring_neighbour(1), 0, b->out, b->count, MPI_FLOAT,
                 ring_neighbour(-1), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static const struct {
    const char *name;
    operation *run;
    int pieces, out_of_place, in_place;
} operations[] = {
    {"all_reduce", all_reduce, 0, 1, 1},
    {"reduce_scatter", reduce_scatter, 1, 1, 1},
    {"reduce_scatter_block", reduce_scatter_block, 1, 1, 1},
    {"all_gather", all_gather, 1, 1, 1},
    {"broadcast", broadcast, 0, 0, 1},
    {"reduce", reduce, 0, 1, 1},
    {"gather", gather, 1, 1, 1},
    {"scatter", scatter, 1, 1, 1},
    {"all_to_all", all_to_all, 1, 1, 1},
    {"barrier", barrier, 0, 1, 0},
    {"sendrecv", sendrecv, 0, 1, 0},
};
enum { OPERATION_COUNT = sizeof operations / sizeof operations[0] };

/* Mean over the ranks of the mean time of `iters` operations, seconds. */
static double time_some(operation *run, const struct buffers *b, int in_place, int iters)
{
    double sum = 0, mean = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < iters; i++) {
        double began = MPI_Wtime();
        run(b, in_place);
        sum += MPI_Wtime() - began;
    }
    MPI_Allreduce(&sum, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return mean / iters / ranks;
}

static double time_us(operation *run, const struct buffers *b, int in_place, int iters)
{
    double first = time_some(run, b, in_place, 5); /* warm-up, and an estimate of the time */
    if (first * iters > LIMIT_S) iters = (int)(LIMIT_S / first) + 3;
    return 1e6 * time_some(run, b, in_place, iters);
}

static void measure(int which, long bytes, int iters)
{
    int piece =
        operations[which].pieces ? (int)(bytes / 4 / ranks > 0 ? bytes / 4 / ranks : 1) : (int)(bytes / 4);
    struct buffers b = {.count = operations[which].pieces ? piece * ranks : piece,
                        .piece = piece,
                        .counts = calloc((size_t)ranks, sizeof *b.counts)};
    size_t capacity = ((size_t)b.count * 4 + 4095) & ~(size_t)4095;
    b.in = aligned_alloc(4096, capacity);
    b.out = aligned_alloc(4096, capacity);
    if (!b.counts || !b.in || !b.out) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(b.in, 0, capacity);
    memset(b.out, 0, capacity);
    for (int r = 0; r < ranks; r++) b.counts[r] = piece;
    double apart = operations[which].out_of_place ? time_us(operations[which].run, &b, 0, iters) : 0;
    double in_place = operations[which].in_place ? time_us(operations[which].run, &b, 1, iters) : 0;
    if (rank == 0) {
        printf("{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"time_us\":%.3f", operations[which].name, ranks,
               bytes, apart > 0 ? apart : in_place);
        if (in_place > 0) printf(",\"in_place\":{\"time_us\":%.3f}", in_place);
        printf("}\n");
        fflush(stdout);
    }
    free(b.in);
    free(b.out);
    free(b.counts);
}

int main(int argc, char **argv)
{
    int which = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while (argc > 1 && which < OPERATION_COUNT && strcmp(operations[which].name, argv[1]) != 0) which++;
    if (argc < 3 || which == OPERATION_COUNT) {
        if (rank == 0) fprintf(stderr, "usage: mpi_operations OPERATION BYTES:ITERS...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int a = 2; a < argc; a++) {
        long bytes = 0;
        int iters = 20;
        if (sscanf(argv[a], "%ld:%d", &bytes, &iters) < 1 || bytes < 4 || bytes > 1 << 30 || iters < 1)
            MPI_Abort(MPI_COMM_WORLD, 2);
        measure(which, bytes, iters);
    }
    MPI_Finalize();
    return 0;
}
