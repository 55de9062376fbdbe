/* weft/status.h - the status that every weft call returns.
 *
 * 0 is done, above 0 is not finished, below 0 is an error. Errors are grouped by what the caller must replace
 * before it calls again:
 *
 *     -1 ..  -19   the call:      an argument or an order of calls is wrong; nothing was changed
 *    -20 ..  -39   the moment:    call later, or with more time or memory
 *    -40 ..  -59   the message:   bytes of a file or peer are invalid or of another version
 *    -60 ..  -79   the peer:      a process is lost or disagrees; a new membership is needed
 *    -80 ..  -99   the session:   this session has ended; finalize it and open another
 *
 * weft.h states which errors leave the session usable. The numbers are pinned: they never change their
 * meaning, and new ones fill the gaps. */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

/* Exported by libweft.so. */
#ifndef WEFT_API
#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum weft_status {
    WEFT_OK = 0,
    WEFT_IN_PROGRESS = 1, /* accepted; the request completes later, exactly once */

    /* the call */
    WEFT_ERR_INVALID = -1,     /* an argument is out of its documented range */
    WEFT_ERR_UNSUPPORTED = -2, /* valid, but this build, backend or mode cannot do it */
    WEFT_ERR_STATE = -3,       /* valid call, but not now (for example push before step_begin) */
    WEFT_ERR_NOT_FOUND = -4,   /* a name, file or host that does not exist */
    WEFT_ERR_EXISTS = -5,      /* a name, port or file that is already taken */
    WEFT_ERR_FORKED = -6,      /* the session belongs to the parent process of a fork */
    WEFT_ERR_BUSY = -7,        /* the object (request, buffer) is still in use */

    /* the moment */
    WEFT_ERR_AGAIN = -20,     /* nothing was queued; call again after some progress */
    WEFT_ERR_NO_MEMORY = -21, /* an allocation failed; nothing was changed */
    WEFT_ERR_LIMIT = -22,     /* a limit is reached; the text has its name and value */
    WEFT_ERR_DEADLINE = -23,  /* the deadline passed; the text names the process that it waited for */
    WEFT_ERR_CANCELLED = -24, /* cancelled by the caller */
    WEFT_ERR_IO = -25,        /* a file or disk operation failed; the text names file and reason */

    /* the message */
    WEFT_ERR_MALFORMED = -40, /* bytes break their format; nothing of them was used */
    WEFT_ERR_TRUNCATED = -41, /* a message is longer than its buffer */
    WEFT_ERR_VERSION = -42,   /* a peer or file has a version that this library does not support */
    WEFT_ERR_AUTH = -43,      /* wrong or missing job secret */

    /* the peer */
    WEFT_ERR_PEER_LOST = -60,   /* a process died or its connection broke; the text names it */
    WEFT_ERR_UNREACHABLE = -61, /* no connection could be made */
    WEFT_ERR_MISMATCH = -62,    /* ranks called differently (kind, count, dtype, shape, step, lr) */
    WEFT_ERR_DIVERGED = -63,    /* replicas that must be bit-equal are not (weight hash) */
    WEFT_ERR_STALE = -64,       /* of an older epoch, incarnation or step; ignored */
    WEFT_ERR_GREW = -66,        /* ranks are new: copy the parameters from rank 0 to all ranks
                                 * (weft_step_begin, weft_step_end) */
    WEFT_ERR_SKIPPED = -67,     /* a gradient is NaN or infinite: no rank has taken the step
                                 * (weft_step_end) */
    WEFT_ERR_SHRUNK = -65,      /* ranks were lost, the others continue: repeat the step (weft_step_begin,
                                 * weft_step_end) */

    /* the session */
    WEFT_ERR_CLOSED = -80,   /* the object is closed or closing */
    WEFT_ERR_ABORTED = -81,  /* a process aborted the job; the text has its name and reason */
    WEFT_ERR_INTERNAL = -82, /* a bug in weft; please report the text */
    WEFT_ERR_ROLLED_BACK = -83, /* the only copy of weights at shards is lost, the job begins again from its
                                 * last snapshot: finalize, open a session, begin weft_step_next */
};

/* Name of a status, "WEFT_ERR_PEER_LOST". Static text, never NULL. Any thread. */
WEFT_API const char *weft_status_name(enum weft_status status);

/* weft_status_text() - one lower-case sentence: meaning of the status, and what to do. Static text, any
 * thread, never NULL. weft_error_text() has the details of one error. */
WEFT_API const char *weft_status_text(enum weft_status status);

#ifdef __cplusplus
}
#endif
#endif
