/* replay.c - runs a fuzz target without libFuzzer: in every build, in the quick suite.
 *
 *     replay [--only N] [FILE or FOLDER ...]
 *
 * First the files (inputs of earlier failures, tests/fuzz/corpus/<target>/), then INPUTS generated ones:
 * well-formed inputs of the target (weft_fuzz_seed) or noise, with some bytes changed, removed, duplicated or
 * cut off. The same number gives the same input everywhere. A failure prints its number.
 *
 *     replay --write FOLDER      writes the well-formed inputs as files: a first corpus for libFuzzer */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/kernels/sample.h"

enum { INPUTS = 3000, SEEDS = 32, ROOM = 1 << 16 };

__attribute__((weak)) size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity);

static char running[512] = "nothing";

static void say_which(int signal_number)
{
    ssize_t ignored = write(STDERR_FILENO, running, strlen(running));
    (void)ignored;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_one(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes + (bytes == 0)); /* so that a sanitizer detects one byte too many */
    memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

static size_t make_input(uint64_t number, uint8_t *data)
{
    struct sample sample = {number * 0x9e3779b97f4a7c15u + 1};
    size_t bytes;
    if (weft_fuzz_seed) {
        bytes = weft_fuzz_seed(number % SEEDS, data, ROOM / 2);
    } else {
        bytes = sample_below(&sample, 200);
        for (size_t i = 0; i < bytes; i++)
            data[i] = (uint8_t)sample_u64(&sample);
    }
    if (number < SEEDS) return bytes; /* unchanged: a target that refuses its own seeds is broken too */
    for (uint64_t change = sample_below(&sample, 4); bytes > 0; change--) {
        const size_t at = sample_below(&sample, bytes), length = sample_below(&sample, bytes - at);
        switch (sample_below(&sample, 6)) {
        case 0: bytes = at; break;
        case 1: data[at] = (uint8_t)sample_u64(&sample); break;
        case 2: data[at] = sample_u64(&sample) & 1 ? 0xff : 0; break;
        case 3:
            memmove(data + at, data + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 4:
            if (bytes + length > ROOM) break;
            memmove(data + at + length, data + at, bytes - at);
            bytes += length;
            break;
        default: data[at] ^= (uint8_t)(1u << sample_below(&sample, 8)); break;
        }
        if (change == 0) break;
    }
    return bytes;
}

static int run_path(const char *path)
{
    static uint8_t data[ROOM];
    struct stat info;
    if (stat(path, &info) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 1;
    }
    if (S_ISDIR(info.st_mode)) {
        int failed = 0;
        struct dirent *entry;
        DIR *folder = opendir(path);
        while (folder && (entry = readdir(folder))) {
            char inner[1024];
            if (entry->d_name[0] == '.') continue;
            snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
            failed |= run_path(inner);
        }
        if (folder) closedir(folder);
        return failed;
    }
    FILE *file = fopen(path, "rb");
    if (!file) return 1;
    const size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    snprintf(running, sizeof running, "failed on file %s\n", path);
    run_one(data, bytes);
    return 0;
}

static int write_seeds(const char *folder)
{
    static uint8_t data[ROOM];
    for (uint64_t number = 0; number < SEEDS; number++) {
        char path[1024];
        const size_t bytes = make_input(number, data);
        snprintf(path, sizeof path, "%s/seed-%02d", folder, (int)number);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
            fprintf(stderr, "%s: cannot be written\n", path);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static uint8_t data[ROOM];
    uint64_t from = 0, to = INPUTS;
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--write") == 0 && i + 1 < argc) return write_seeds(argv[i + 1]);
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            from = strtoull(argv[++i], NULL, 10);
            to = from + 1;
        }
    }
    signal(SIGABRT, say_which);
    signal(SIGSEGV, say_which);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--only") == 0)
            i++;
        else
            failed |= run_path(argv[i]);
    }
    for (uint64_t number = from; number < to; number++) {
        const size_t bytes = make_input(number, data);
        snprintf(running, sizeof running, "failed on input %llu; again: %s --only %llu\n",
                 (unsigned long long)number, argv[0], (unsigned long long)number);
        run_one(data, bytes);
    }
    return failed;
}
