/* report.h - output of a run: a row per evaluation (CSV), a summary (JSON), a progress bar. */
#ifndef FASHION_MNIST_REPORT_H
#define FASHION_MNIST_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct measurement {
    uint64_t step;
    double epoch;
    double seconds;    /* of training, without evaluations */
    double sent_bytes; /* per worker, at the transport, since the start */
    double received_bytes;
    double train_loss; /* mean since the last measurement */
    double test_loss;
    double accuracy;   /* 0..1, on the test images */
};

/* Codec of a tensor at the end of the run. */
struct tensor_summary {
    char name[32], codec[256];
    bool chosen;                       /* by the library */
    uint64_t since_step, changes;
    double saved_bytes, saved_seconds; /* against dense */
};

struct summary {
    const char *mode, *codec;
    uint32_t workers, shards, batch;
    uint64_t seed, steps, steps_planned;
    double seconds, images_per_second, exposed_share;
    uint64_t weight_hash;
    const struct tensor_summary *tensors; /* (tensor_count,) */
    size_t tensor_count;
};

struct report {
    FILE *csv, *json;
    const char *csv_path, *json_path;
    struct measurement last;
    bool any, bar; /* bar: stderr is a terminal */
};

/* Opens the files; NULL: none. On failure prints file and reason on stderr. */
bool report_open(struct report *report, const char *csv_path, const char *json_path);
void report_add(struct report *report, const struct measurement *measurement);
void report_progress(struct report *report, uint64_t step, uint64_t steps, double seconds, double loss);
/* Prints the summary on stdout, completes the JSON and closes both files. false: a file could not be
 * written. */
bool report_close(struct report *report, const struct summary *summary);
/* After a failed run: keeps the rows written so far, and completes the JSON. */
void report_abandon(struct report *report, const char *why);

#endif
