/* options.c - see options.h. One table drives getopt_long, the checks and --help. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, REAL, U32, U64 };

struct option_row {
    const char *name, *argument, *help;
    enum kind kind;
    size_t offset;
    double min, max; /* of numbers; min_open: min itself is not allowed */
    bool min_open;
};

#define AT(field) offsetof(struct trainer_options, field)
static const struct option_row rows[] = {
    {"mode", "MODE", "server or all_reduce (default: server when the job has shards)", TEXT, AT(mode), 0, 0,
     false},
    {"codec", "SPEC", "dense, f16, bf16, powersgd:rank=4, topk:ratio=0.01, auto:topk,bf16 (default dense)",
     TEXT, AT(codec), 0, 0, false},
    {"epochs", "E", "passes over the 60,000 images (default 6)", REAL, AT(epochs), 0, 10000, true},
    {"steps", "N", "stop after N steps instead (the schedule ends there too)", U64, AT(steps), 1, 1e9, false},
    {"seconds", "S", "stop after S seconds of training, wherever the schedule is", REAL, AT(seconds), 0, 1e6,
     true},
    {"batch", "N", "images per worker and step (default 128)", U32, AT(batch), 1, 4096, false},
    {"lr", "X", "highest learning rate (default 0.05)", REAL, AT(lr), 0, 100, true},
    {"lr-final", "SHARE", "share of it left at the end of the cosine (default 0)", REAL, AT(lr_final), 0, 1,
     false},
    {"warmup", "SHARE", "share of the steps in which it rises (default 0.05)", REAL, AT(warmup), 0, 1, false},
    {"momentum", "X", "of SGD with Nesterov momentum; 0: plain SGD (default 0.9)", REAL, AT(momentum), 0,
     0.9999, false},
    {"weight-decay", "X", "(default 1e-4)", REAL, AT(weight_decay), 0, 1, false},
    {"hidden", "N", "width of the two hidden layers (default 1024)", U32, AT(hidden), 1, 8192, false},
    {"chunk", "BYTES", "cut size of tensors over the shards (default: weft's, 256 KiB)", U64, AT(chunk_bytes),
     4096, 1e9, false},
    {"seed", "N", "of the first weights and of the order of images (default 1)", U64, AT(seed), 0, 1e18,
     false},
    {"eval-every", "N", "steps between evaluations on the test images (default: four an epoch)", U32,
     AT(eval_every), 1, 1e9, false},
    {"eval-seconds", "S", "seconds of training between evaluations instead", REAL, AT(eval_seconds), 0, 1e6,
     true},
    {"csv", "FILE", "rank 0 writes one row per evaluation", TEXT, AT(csv), 0, 0, false},
    {"json", "FILE", "rank 0 writes the evaluations and the summary", TEXT, AT(json), 0, 0, false},
    {"hash-steps", "FILE", "rank R writes a hash of all weights after every step to FILE.R", TEXT,
     AT(hash_steps), 0, 0, false},
    {"data", "DIR", "the data set (default /usr/share/datasets/fashion-mnist)", TEXT, AT(data), 0, 0, false},
};
enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

static void print_help(void)
{
    printf("usage: weft run -s SHARDS -n WORKERS -- fashion_mnist [options]\n\n"
           "Trains a perceptron 784-1024-1024-10 on Fashion-MNIST, data parallel: each worker takes its part "
           "of\n"
           "every batch, weft sums the gradients. Same seed, same weights, however many workers share the "
           "batch.\n\n");
    for (int i = 0; i < ROW_COUNT; i++) {
        char left[40];
        snprintf(left, sizeof(left), "--%s %s", rows[i].name, rows[i].argument);
        printf("  %-22s %s\n", left, rows[i].help);
    }
    printf("  %-22s %s\n", "--help", "this text");
}

static bool set_number(const struct option_row *row, void *field, const char *text)
{
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    bool whole = row->kind == REAL || value == floor(value);
    bool low = row->min_open ? value <= row->min : value < row->min;
    if (end == text || *end || errno || !isfinite(value) || low || value > row->max || !whole) {
        fprintf(stderr, "fashion_mnist: --%s %s: expected %s %s %g and at most %g\n", row->name, text,
                row->kind == REAL ? "a number" : "a whole number", row->min_open ? "above" : "of at least",
                row->min, row->max);
        return false;
    }
    switch (row->kind) {
    case REAL: *(double *)field = value; break;
    case U32: *(uint32_t *)field = (uint32_t)value; break;
    case U64: *(uint64_t *)field = (uint64_t)value; break;
    case TEXT: break;
    }
    return true;
}

int trainer_options_parse(struct trainer_options *options, int argc, char **argv)
{
    *options = (struct trainer_options){.codec = "dense",
                                        .data = "/usr/share/datasets/fashion-mnist",
                                        .epochs = 6,
                                        .batch = 128,
                                        .lr = 0.05,
                                        .warmup = 0.05,
                                        .momentum = 0.9,
                                        .weight_decay = 1e-4,
                                        .hidden = 1024,
                                        .seed = 1};
    struct option longs[ROW_COUNT + 2] = {{0}};
    for (int i = 0; i < ROW_COUNT; i++)
        longs[i] = (struct option){rows[i].name, required_argument, NULL, 256 + i};
    longs[ROW_COUNT] = (struct option){"help", no_argument, NULL, 'h'};

    int found;
    while ((found = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (found == 'h') return print_help(), 1;
        if (found < 256) goto usage; /* getopt has printed the error */
        const struct option_row *row = &rows[found - 256];
        void *field = (char *)options + row->offset;
        if (row->kind == TEXT) {
            *(const char **)field = optarg;
        } else if (!set_number(row, field, optarg)) {
            return 3;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "fashion_mnist: unexpected argument '%s'\n", argv[optind]);
        goto usage;
    }
    if (options->mode && strcmp(options->mode, "server") != 0 && strcmp(options->mode, "all_reduce") != 0) {
        fprintf(stderr, "fashion_mnist: --mode %s: expected server or all_reduce\n", options->mode);
        return 3;
    }
    return 0;

usage:
    fprintf(stderr, "fashion_mnist: see --help for the options\n");
    return 3;
}
