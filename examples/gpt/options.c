/* options.c - see options.h. One table drives getopt_long, the checks and --help. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum kind { TEXT, REAL, WHOLE, FLAG };

struct option_row {
    const char *name, *argument, *help;
    enum kind kind;
    size_t offset;
    double min, max;      /* of numbers */
    const char *words[4]; /* TEXT: what it may be; none: anything */
};

#define AT(field) offsetof(struct gpt_options, field)
static const struct option_row rows[] = {
    {"text", "FILE", "the text, plain or gzip (default /usr/share/dictd/gcide.dict.dz)", TEXT, AT(text)},
    {"blocks", "N", "transformer blocks (default 4)", WHOLE, AT(blocks), 1, GPT_LAYERS_MAX},
    {"width", "N", "width of the model, a multiple of --heads (default 128)", WHOLE, AT(width), 2, 4096},
    {"heads", "N", "attention heads (default 4)", WHOLE, AT(heads), 1, 64},
    {"length", "N", "bytes of a sample (default 64)", WHOLE, AT(length), 2, 1024},
    {"batch", "N", "samples of a step over all ranks (default 8)", WHOLE, AT(batch), 1, 4096},
    {"steps", "N", "steps of the whole training and its learning rate (default 300)", WHOLE, AT(steps), 1,
     1e9},
    {"stop", "N", "end after step N, with a checkpoint (default: after the last)", WHOLE, AT(stop), 1, 1e9},
    {"every", "N", "steps between evaluations (default 100)", WHOLE, AT(every), 1, 1e9},
    {"lr", "X", "highest learning rate (default 0.001)", REAL, AT(lr), 0, 10},
    {"weight-decay", "X", "of the matrices (default 0.1)", REAL, AT(weight_decay), 0, 1},
    {"seed", "N", "of the first weights and the samples (default 1)", WHOLE, AT(seed), 0, 1e15},
    {"precision", "P", "of the weights that the layers compute with: f32 or bf16; masters are f32", TEXT,
     AT(precision), 0, 0, {"f32", "bf16"}},
    {"mode", "MODE", "server or all_reduce (default: server when the job has shards)", TEXT, AT(mode), 0, 0,
     {"server", "all_reduce"}},
    {"codec", "SPEC", "of the matrices: dense, bf16, powersgd:rank=4, auto:lossy (default dense)", TEXT,
     AT(codec)},
    {"overlap", "WHEN",
     "after: push behind the backward pass; backward: each layer in it; forward: also wait for each "
     "layer in the next forward pass (default)", TEXT, AT(overlap_name), 0, 0,
     {"after", "backward", "forward"}},
    {"checkpoint", "DIR", "save to this folder at the end", TEXT, AT(checkpoint)},
    {"measure", "N", "do not train: what communication adds to a step, by four ways in turn, in blocks of "
     "N steps, --steps of each", WHOLE, AT(measure), 1, 1e6},
    {"pace", "US", "with --measure: a layer sleeps US in the forward pass and twice that in the backward "
     "pass, and computes nothing", WHOLE, AT(pace), 1, 1e6},
    {"resume", "", "continue from the checkpoint", FLAG, AT(resume)},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static void print_help(void)
{
    printf(
        "usage: weft run -n WORKERS [-s SHARDS] -- gpt [options]\n\n"
        "Trains a byte-level GPT, data parallel: each rank takes its part of every batch, weft averages the\n"
        "gradients and updates the weights (AdamW).\n\n");
    for (int i = 0; i < ROW_COUNT; i++) {
        char left[40];
        snprintf(left, sizeof left, "--%s %s", rows[i].name, rows[i].argument);
        printf("  %-20s %s\n", left, rows[i].help);
    }
}

static bool set_text(const struct option_row *row, const char **field, const char *text)
{
    *field = text;
    for (int i = 0; row->words[i]; i++)
        if (strcmp(row->words[i], text) == 0) return true;
    if (!row->words[0]) return true;
    fprintf(stderr, "gpt: --%s %s: expected %s, %s%s%s\n", row->name, text, row->words[0], row->words[1],
            row->words[2] ? " or " : "", row->words[2] ? row->words[2] : "");
    return false;
}

static bool set_number(const struct option_row *row, void *field, const char *text)
{
    char *end = NULL;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end || errno || !(value >= row->min && value <= row->max) ||
        (row->kind == WHOLE && value != floor(value))) {
        fprintf(stderr, "gpt: --%s %s: expected a %snumber from %g to %g\n", row->name, text,
                row->kind == WHOLE ? "whole " : "", row->min, row->max);
        return false;
    }
    if (row->kind == WHOLE) *(uint64_t *)field = (uint64_t)value;
    else *(double *)field = value;
    return true;
}

static bool set(struct gpt_options *options, const struct option_row *row, const char *text)
{
    void *field = (char *)options + row->offset;
    if (row->kind == FLAG) return *(bool *)field = true;
    return row->kind == TEXT ? set_text(row, (const char **)field, text) : set_number(row, field, text);
}

static bool check(struct gpt_options *options)
{
    static const char *const overlaps[] = {"after", "backward", "forward"};
    for (int i = 0; i < 3; i++)
        if (strcmp(options->overlap_name, overlaps[i]) == 0) options->overlap = (enum gpt_overlap)i;
    if (options->width % options->heads) {
        fprintf(stderr, "gpt: --width %u is no multiple of --heads %u\n", (unsigned)options->width,
                (unsigned)options->heads);
        return false;
    }
    if (options->pace && !options->measure) {
        fprintf(stderr, "gpt: --pace is for --measure\n");
        return false;
    }
    if (options->resume && !options->checkpoint) {
        fprintf(stderr, "gpt: --resume needs --checkpoint DIR\n");
        return false;
    }
    return true;
}

int gpt_options_parse(struct gpt_options *options, int argc, char **argv)
{
    *options = (struct gpt_options){.text = "/usr/share/dictd/gcide.dict.dz",
                                    .codec = "dense",
                                    .precision = "f32",
                                    .overlap_name = "forward",
                                    .blocks = 4,
                                    .width = 128,
                                    .heads = 4,
                                    .length = 64,
                                    .batch = 8,
                                    .steps = 300,
                                    .every = 100,
                                    .seed = 1,
                                    .lr = 1e-3,
                                    .weight_decay = 0.1};
    struct option longs[ROW_COUNT + 2] = {{0}};
    for (int i = 0; i < ROW_COUNT; i++)
        longs[i] = (struct option){rows[i].name, rows[i].kind == FLAG ? no_argument : required_argument, NULL,
                                   256 + i};
    longs[ROW_COUNT] = (struct option){"help", no_argument, NULL, 'h'};
    int found;
    while ((found = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (found == 'h') return print_help(), 1;
        if (found < 256) return 3; /* getopt has printed the error */
        if (!set(options, &rows[found - 256], optarg)) return 3;
    }
    if (optind < argc) return fprintf(stderr, "gpt: unexpected argument '%s'\n", argv[optind]), 3;
    if (!check(options)) return 3;
    if (!options->stop || options->stop > options->steps) options->stop = options->steps;
    return 0;
}
