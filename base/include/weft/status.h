/* weft/status.h - status codes.
 *
 * 0 is success, a positive value is "in progress", a negative value is an error. Errors are grouped by what
 * the caller must replace before a retry:
 *
 *     -1 ..  -19   the call:      wrong argument or order of calls; nothing was changed
 *    -20 ..  -39   the moment:    retry later, or with more time or memory; the session is intact
 *    -40 ..  -59   the message:   bytes of a file or a peer that are not valid
 *    -60 ..  -79   the peer:      a process is lost or disagrees; a new membership is needed
 *    -80 ..  -99   the session:   the session cannot continue; close it and open another
 *
 * The numbers never change their meaning. New ones fill the gaps. */
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
    WEFT_ERR_LIMIT = -22,     /* a named limit (option) is reached */
    WEFT_ERR_DEADLINE = -23,  /* the deadline passed; the text names what it waited for */
    WEFT_ERR_CANCELLED = -24, /* cancelled by the caller */
    WEFT_ERR_IO = -25,        /* a file or disk operation failed; the text has the cause */

    /* the message */
    WEFT_ERR_MALFORMED = -40, /* bytes that break the format; none of them was used */
    WEFT_ERR_TRUNCATED = -41, /* a message longer than the receive buffer */
    WEFT_ERR_VERSION = -42,   /* a peer or file has a version that is not supported */
    WEFT_ERR_AUTH = -43,      /* wrong or missing job secret */

    /* the peer */
    WEFT_ERR_PEER_LOST = -60,   /* a process died or its connection broke; the text names it */
    WEFT_ERR_UNREACHABLE = -61, /* no connection could be made */
    WEFT_ERR_MISMATCH = -62,    /* ranks called differently (kind, count, dtype, shape, step, lr) */
    WEFT_ERR_DIVERGED = -63,    /* replicas that must be bit-equal are not (weight hash) */
    WEFT_ERR_STALE = -64,       /* older epoch, incarnation or step; ignored */
    WEFT_ERR_GREW = -66,        /* new ranks: all ranks take the parameters from rank 0 (weft_step_begin,
                                 * weft_step_end) */
    WEFT_ERR_SKIPPED = -67,     /* a gradient is NaN or infinite: no rank has applied the step
                                 * (weft_step_end) */
    WEFT_ERR_SHRUNK = -65,      /* ranks were lost and the others go on: run the step again (weft_step_end) */

    /* the session */
    WEFT_ERR_CLOSED = -80,   /* the object is closed or closing */
    WEFT_ERR_ABORTED = -81,  /* a process aborted the job; the text has the process and the reason */
    WEFT_ERR_INTERNAL = -82, /* a bug in weft; please report the text */
};

/* Name of a status, "WEFT_ERR_PEER_LOST". Static text, never NULL. Any thread. */
WEFT_API const char *weft_status_name(enum weft_status status);

/* Meaning of a status and what to do, one lower-case sentence. Static text, never NULL. Any thread.
 * weft_error_text() has the details of an error. */
WEFT_API const char *weft_status_text(enum weft_status status);

#ifdef __cplusplus
}
#endif
#endif
