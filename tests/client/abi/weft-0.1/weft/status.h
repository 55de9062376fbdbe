/* weft/status.h - what every weft call answers.
 *
 * 0 is done, positive is "not finished yet", negative is an error. Errors are grouped by *what the
 * caller must replace* before trying again, because that is the only thing a caller can act on:
 *
 *     -1 ..  -19   the call:      an argument or an order of calls is wrong; nothing was changed
 *    -20 ..  -39   the moment:    try later, or with more time or memory; the session is intact
 *    -40 ..  -59   the message:   bytes from a file or a peer that cannot be trusted or understood
 *    -60 ..  -79   the peer:      somebody is gone or disagrees; a new membership is needed
 *    -80 ..  -99   the session:   this session cannot go on; close it and open another
 *
 * The numbers are pinned: they never change meaning, and new ones are added in the gaps. */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

/* Marks what libweft.so exports. */
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
    WEFT_ERR_STATE = -3,       /* right call, wrong moment (for example push before step_begin) */
    WEFT_ERR_NOT_FOUND = -4,   /* a name, file or host that does not exist */
    WEFT_ERR_EXISTS = -5,      /* a name, port or file that is already taken */
    WEFT_ERR_FORKED = -6,      /* the session belongs to the parent process of a fork */
    WEFT_ERR_BUSY = -7,        /* the object (request, buffer) is still in use */

    /* the moment */
    WEFT_ERR_AGAIN = -20,     /* nothing was queued; call again after some progress */
    WEFT_ERR_NO_MEMORY = -21, /* an allocation failed; nothing was changed */
    WEFT_ERR_LIMIT = -22,     /* a named limit (option) is reached */
    WEFT_ERR_DEADLINE = -23,  /* the deadline passed; the text names whom it waited for */
    WEFT_ERR_CANCELLED = -24, /* cancelled by the caller */
    WEFT_ERR_IO = -25,        /* a file or disk refused; the text says which and why */

    /* the message */
    WEFT_ERR_MALFORMED = -40, /* bytes that break the format; nothing was used of them */
    WEFT_ERR_TRUNCATED = -41, /* a message longer than the buffer that waited for it */
    WEFT_ERR_VERSION = -42,   /* a peer or file of a version this one does not serve */
    WEFT_ERR_AUTH = -43,      /* wrong or missing job secret */

    /* the peer */
    WEFT_ERR_PEER_LOST = -60,   /* a process died or its connection broke; the text names it */
    WEFT_ERR_UNREACHABLE = -61, /* no connection could be made */
    WEFT_ERR_MISMATCH = -62,    /* ranks called differently (kind, count, dtype, shape, step, lr) */
    WEFT_ERR_DIVERGED = -63,    /* replicas that must be bit-equal are not (weight hash) */
    WEFT_ERR_STALE = -64,       /* of an older epoch, incarnation or step; ignored */
    WEFT_ERR_GREW = -66,        /* ranks are new: all take the parameters from rank 0 (weft_step_begin, weft_step_end) */
    WEFT_ERR_SHRUNK = -65,      /* ranks were lost and the others go on: the step is to be run again (weft_step_end) */

    /* the session */
    WEFT_ERR_CLOSED = -80,   /* the object is closed or closing */
    WEFT_ERR_ABORTED = -81,  /* somebody aborted the job; the text says who and why */
    WEFT_ERR_INTERNAL = -82, /* a bug in weft; please report the text */
};

/* weft_status_name() - "WEFT_ERR_PEER_LOST"; static text, any thread, never NULL. */
WEFT_API const char *weft_status_name(enum weft_status status);

/* weft_status_text() - one lower-case sentence that says what the status means and what to do;
 * static text, any thread, never NULL. What exactly happened is in weft_error_text(). */
WEFT_API const char *weft_status_text(enum weft_status status);

#ifdef __cplusplus
}
#endif
#endif
