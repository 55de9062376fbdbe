/* log_capture.h - an env that keeps its log lines, for tests that look for one. */
#ifndef WEFT_TESTS_LIB_LOG_CAPTURE_H
#define WEFT_TESTS_LIB_LOG_CAPTURE_H

#include <pthread.h>

#include "base/env.h"

struct log_capture {
    struct weft_env env; /* hand out &capture.env: the system env but for the sink; level trace */
    pthread_mutex_t mutex;
    char *text;          /* "warn room: text\n" lines, oldest first; NULL while there is none */
    size_t bytes;
};

void log_capture_init(struct log_capture *capture);
void log_capture_fini(struct log_capture *capture);
bool log_capture_contains(struct log_capture *capture, const char *part); /* any thread */
void log_capture_clear(struct log_capture *capture);

#endif
