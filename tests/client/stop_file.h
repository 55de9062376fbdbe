/* stop_file.h - the ranks of a test program end together, a step after rank 0 sees a file. */
#ifndef WEFT_TESTS_CLIENT_STOP_FILE_H
#define WEFT_TESTS_CLIENT_STOP_FILE_H

#include <unistd.h>

#include <weft/weft.h>

/* *flag: not 0 on all ranks if the file exists on rank 0. Blocks. */
static inline enum weft_status all_stop(struct weft_session *session, const char *path, float *flag)
{
    struct weft_request request = {{0}};
    *flag = weft_rank(session) == 0 && access(path, F_OK) == 0;
    enum weft_status status = weft_all_reduce(session, flag, flag, 1, WEFT_F32, WEFT_MAX, &request);
    return status < 0 ? status : weft_wait(&request, 0);
}

#endif
