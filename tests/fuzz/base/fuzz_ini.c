/* fuzz_ini.c - the configuration file: any bytes are read or refused with a sentence. Afterwards each value
 * has its option's type and range, and is from this file or the default. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/config/config.h"
#include "tests/fuzz/fuzz.h"

static void check_option(const struct weft_config *config, const struct weft_option *option)
{
    uint64_t number = 0;
    switch (option->type) {
    case WEFT_OPTION_TEXT:
        if (!weft_config_text(config, option->name)) abort();
        return;
    case WEFT_OPTION_BOOL: weft_config_bool(config, option->name); return;
    default:
        number = weft_config_u64(config, option->name);
        if (number < option->min || number > option->max) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    static char path[40];
    struct weft_config *config;
    struct weft_error error = {0};
    if (fd < 0) {
        unsetenv("WEFT_CONFIG");
        fd = memfd_create("ini", MFD_CLOEXEC);
        if (fd < 0) abort();
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes) abort();
    if (weft_config_load(weft_env_system(), &config, &error) < 0) abort();
    if (weft_config_read_file(config, path, &error) < 0 && !error.text[0]) abort();
    for (const struct weft_option *option = weft_option_table; option->name; option++)
        check_option(config, option);
    weft_config_free(config);
    return 0;
}

/* One option after another, with its default, a number, a word. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const values[] = {"7", "5s", "4MiB", "yes", "word", "\"a b\" ; remark", ""};
    size_t options = 0, at = 0;
    char *text = (char *)out;
    while (weft_option_table[options].name) options++;
    for (uint64_t i = 0; i < 3 && at + 400 < capacity; i++) {
        const struct weft_option *option = &weft_option_table[(number * 3 + i) % options];
        const char *dot = strchr(option->name, '.'),
                   *value = i == 0 ? option->default_text : values[(number + i) % 7];
        at += (size_t)snprintf(text + at, 400, "[%.*s]\n%s = %.200s\n", (int)(dot - option->name),
                               option->name, dot + 1, value);
    }
    return at;
}
