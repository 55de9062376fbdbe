/* log_capture.h - an env that keeps its log lines, for tests that search them. */
#ifndef WEFT_TESTS_LIB_LOG_CAPTURE_H
#define WEFT_TESTS_LIB_LOG_CAPTURE_H

#include <pthread.h>

#include "base/env.h"

struct log_capture {
    struct weft_env env; /* pass &capture.env: the system env with this sink; level trace */
    pthread_mutex_t mutex;
    char *text; /* lines "warn module: text\n", oldest first; NULL: none */
    size_t bytes;
};

void log_capture_init(struct log_capture *capture);
void log_capture_fini(struct log_capture *capture);
bool log_capture_contains(struct log_capture *capture, const char *part); /* any thread */
void log_capture_clear(struct log_capture *capture);

#endif
