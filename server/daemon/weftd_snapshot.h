/* weftd_snapshot.h - what the parts of weftd's snapshots share: weftd_snapshot.c, weftd_snapshot_writer.c. */
#ifndef WEFT_SERVER_DAEMON_WEFTD_SNAPSHOT_H
#define WEFT_SERVER_DAEMON_WEFTD_SNAPSHOT_H

#include "server/daemon/weftd.h"

enum snapshot_task_kind { SNAPSHOT_TASK_PIECE, SNAPSHOT_TASK_END, SNAPSHOT_TASK_PART, SNAPSHOT_TASK_COMMIT };

/* Work of the writer. */
struct snapshot_task {
    struct weft_list link;
    enum snapshot_task_kind kind;
    uint32_t id;                   /* of the snapshot: PIECE, END */
    struct weft_piece *piece;      /* PIECE, PART: owned */
    char text[200];                /* END of an engine, PART: why it failed; "": it did not */
    struct weft_snapshot manifest; /* COMMIT: owned */
    uint64_t passed_ns;            /* COMMIT: when the step had ended */
    /* PART: returns to the net thread by `command` */
    struct weft_command command;
    struct weft_list in_flight; /* in weftd_snapshots.parts until then; net thread */
    struct weftd_snapshots *snapshots;
    struct weft_snapshot_bytes part;
    struct weft_piece_ref ref; /* of the stored piece */
    uint32_t begun;            /* weftd_snapshots.begun */
};

/* From the writer to the net thread: what this shard has stored of a snapshot. */
struct snapshot_report {
    struct weft_command command;
    struct weftd_snapshots *snapshots;
    uint32_t id;
    char text[480];              /* why it failed; "": it did not */
    struct weft_snapshot stored; /* pieces; tensors are numbers of the job */
};

/* One engine's side; the context of its callbacks. */
struct snapshot_engine {
    struct weftd_snapshots *snapshots;
    struct weftd_engine *engine;
    struct weft_command resume, passed;
    atomic_bool wants_memory, resume_posted, passed_posted;
    atomic_bool has_lost; /* a captured piece was lost for want of memory */
    atomic_uint passed_id;
};

/* Answers of the engines to the last Snap; net thread. */
struct snapshot_arming {
    uint32_t id, pending;
    uint64_t newest;
    bool is_late;
};

/* The last full piece of a layout; writer. */
struct snapshot_base {
    uint64_t layout;
    struct weft_piece_ref ref;
    uint32_t uses;
};

/* Figures for metrics; any thread. */
struct snapshot_stats {
    _Atomic uint64_t committed, failed, step, time_s; /* step, time_s: of the last committed one */
    _Atomic uint64_t pieces, bytes, stored_bytes;     /* written by this shard */
    _Atomic uint64_t stall_ns, write_ns;
};

/* The thread that stores pieces. Fields behind `stops` are its own. */
struct snapshot_writer {
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards queue, stops, seconds and bytes */
    pthread_cond_t changed;
    struct weft_list queue;
    bool stops;
    struct weft_histogram seconds;     /* of committed snapshots: from the end of the step to the commit */
    struct weft_histogram bytes; /* of their files, also those that another snapshot has stored */

    struct weft_snapshot_hook *hook; /* owned; NULL: none */
    struct snapshot_report *report;  /* owned; the snapshot that is being stored; NULL: none */
    uint32_t newest_id;              /* of all reports so far */
    uint32_t ended;                  /* engines that have ended it */
    struct snapshot_base *bases;     /* (base_count,) owned */
    uint32_t base_count, base_capacity;
};

struct weftd_snapshots {
    struct weftd *weftd;
    char folder[1024];
    uint32_t keep, hook_keep; /* snapshots that stay; hook_keep 0: all in the other store */
    enum weft_piece_dtype weights;
    struct weft_snapshot_interval interval;
    struct snapshot_engine *engines; /* (engines,) owned */
    size_t most_bytes;
    atomic_size_t used_bytes; /* captured and not on disk */
    struct snapshot_stats stats;

    struct snapshot_writer writer;

    struct snapshot_arming arming;
    bool is_storing, leaves; /* from SnapPassed to the report; the job has finished meanwhile; net thread */
    uint32_t storing_id;     /* of the last SnapPassed; net thread */
    uint64_t passed_ns;      /* when that arrived; 0: none has; net thread */
    struct weft_snapshot manifest; /* of the pieces so far; net thread */
    uint32_t begun;                /* manifests that have begun; net thread */
    struct weft_list parts;        /* tasks of workers' parts; net thread */
    bool manifest_failed;
    struct weft_command committed;
    bool commit_is_good; /* written before `committed` is posted */
};

/* weftd_snapshot.c */
void weftd_snapshot_on_report(struct weft_command *command); /* net thread; a report is complete */
void weftd_snapshot_task_put(struct weftd_snapshots *snapshots, struct snapshot_task *task); /* any thread */
void weftd_snapshot_give_back(struct weftd_snapshots *snapshots, size_t bytes);              /* any thread */

/* weftd_snapshot_parts.c */
/* Net thread: bytes of a worker's part (option snapshot_part of the coordinator). */
void weftd_snapshot_on_part(void *context, const struct weft_snapshot_bytes *bytes);
/* Writer: stores the piece of the task, which then returns to the net thread. */
void weftd_snapshot_part_write(struct weftd_snapshots *snapshots, struct snapshot_task *task);

/* After both threads: tasks that have not returned. */
void weftd_snapshot_parts_free(struct weftd_snapshots *snapshots);

/* weftd_snapshot_writer.c */
/* Writer: copies the stored piece to the other store, if there is a hook. */
void weftd_snapshot_put_piece(struct weftd_snapshots *snapshots, const struct weft_piece_ref *ref);
enum weft_status weftd_snapshot_writer_start(struct weftd_snapshots *snapshots, struct weft_error *error);
void weftd_snapshot_writer_fini(struct weftd_snapshots *snapshots); /* after its thread */
/* Without a thread, in virtual time: runs the task. */
void weftd_snapshot_writer_run(struct weftd_snapshots *snapshots, struct snapshot_task *task);

#endif
