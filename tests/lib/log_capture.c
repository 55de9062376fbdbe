/* log_capture.c - see log_capture.h. */
#include "tests/lib/log_capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"

static void append_line(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    struct log_capture *capture = env->context;
    char line[1200];
    int bytes = snprintf(line, sizeof line, "%s %s: %s\n", weft_log_level_name(level), module, text);
    pthread_mutex_lock(&capture->mutex);
    char *grown = realloc(capture->text, capture->bytes + (size_t)bytes + 1);
    if (grown) {
        memcpy(grown + capture->bytes, line, (size_t)bytes + 1);
        capture->text = grown;
        capture->bytes += (size_t)bytes;
    }
    pthread_mutex_unlock(&capture->mutex);
}

void log_capture_init(struct log_capture *capture)
{
    *capture = (struct log_capture){.env = *weft_env_system()};
    capture->env.log = append_line;
    capture->env.log_level = WEFT_LOG_TRACE;
    capture->env.context = capture;
    assert_int_equal(pthread_mutex_init(&capture->mutex, NULL), 0);
}

void log_capture_fini(struct log_capture *capture)
{
    free(capture->text);
    pthread_mutex_destroy(&capture->mutex);
}

bool log_capture_contains(struct log_capture *capture, const char *part)
{
    pthread_mutex_lock(&capture->mutex);
    bool found = capture->text && strstr(capture->text, part);
    pthread_mutex_unlock(&capture->mutex);
    return found;
}

void log_capture_clear(struct log_capture *capture)
{
    pthread_mutex_lock(&capture->mutex);
    free(capture->text);
    capture->text = NULL;
    capture->bytes = 0;
    pthread_mutex_unlock(&capture->mutex);
}
