/* flight_dump.c - writes the flight record to a file, also in a failed session.
 *
 * Any thread may read both rings while the engine writes, so a dump does not need the engine thread, which
 * may hang. A file is written under a temporary name and renamed, so `weft inspect` never reads half a
 * file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/session/failure.h"
#include "client/session/flight.h"
#include "client/session/session.h"

#define PATH_BYTES 4096

static void print_record(struct weft_session *session, const char *why, FILE *out)
{
    char engine[64];
    snprintf(engine, sizeof engine, "rank %u", session->rank);
    fprintf(out, "{\"weft_flight\":1,\"job\":");
    weft_json_text(out, session->settings.job);
    fprintf(out, ",\"rank\":%u,\"ranks\":%u,\"host\":", session->rank, session->ranks);
    weft_json_text(out, session->control.host);
    fprintf(out, ",\"pid\":%ld,\"now_ns\":%llu,\"status\":\"%s\",\"text\":", (long)session->live.pid,
            (unsigned long long)weft_now_ns(session->env), weft_status_name(client_failed(session)));
    weft_json_text(out, why);
    fputs(",\n", out);
    weft_recorder_dump(session->flight.recorder, out);
    fputs(",\n\"recorder\":", out);
    weft_event_ring_dump_json(session->flight.events, engine, out);
    fputs("}\n", out);
}

/* Path of the file in a directory. Characters of the job's name that a path must not hold are replaced. */
static bool dump_path(const struct weft_session *session, const char *directory, char out[PATH_BYTES])
{
    char job[256];
    snprintf(job, sizeof job, "%s", session->settings.job);
    for (char *c = job; *c; c++)
        if (*c == '/' || *c == '.' || (unsigned char)*c <= ' ') *c = '_';
    return snprintf(out, PATH_BYTES, "%s/flight-%s-rank%u.json", directory, job, session->rank) < PATH_BYTES;
}

/* 0, or the errno of the failure; then no file is left. */
static int write_file(struct weft_session *session, const char *path, const char *why)
{
    static const char perfetto[] = ".perfetto.json";
    size_t length = strlen(path), tail = sizeof perfetto - 1;
    bool trace = length >= tail && strcmp(path + length - tail, perfetto) == 0;
    struct weft_replace_file replaced;
    int reason = weft_replace_file_open(&replaced, path, 0644);
    if (reason != 0) return reason;
    const int copy = fcntl(replaced.fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "w");
    if (!file) {
        reason = errno;
        if (copy >= 0) close(copy);
        return weft_replace_file_close(&replaced, reason, false);
    }
    errno = 0;
    if (trace) weft_event_ring_dump_perfetto(session->flight.events, "weft", (int)session->live.pid, file);
    else print_record(session, why, file);
    reason = ferror(file) ? (errno ? errno : EIO) : 0; /* the first error has the reason */
    if (fflush(file) != 0 && !reason) reason = errno;
    if (fclose(file) != 0 && !reason) reason = errno;
    return weft_replace_file_close(&replaced, reason, false);
}

enum weft_status weft_dump_events(struct weft_session *session, const char *path)
{
    char inside[PATH_BYTES];
    struct stat there;
    if (!session) return client_null_argument("dump_events", "session");
    enum weft_status usable = client_usable(session);
    if (usable == WEFT_ERR_FORKED) return usable;
    if (!path || !path[0]) return client_error(session, WEFT_ERR_INVALID, "dump_events: path is empty");
    if (stat(path, &there) == 0 && S_ISDIR(there.st_mode)) {
        if (!dump_path(session, path, inside))
            return client_error(session, WEFT_ERR_INVALID, "dump_events: the path is too long");
        path = inside;
    }
    int reason = write_file(session, path, usable < 0 ? session->failure.text : "asked for");
    if (reason)
        return client_error(session, WEFT_ERR_IO, "dump_events: cannot write %s: %s", path, strerror(reason));
    return WEFT_OK;
}

static void dump_into(struct weft_session *session, const char *directory, const char *why)
{
    char path[PATH_BYTES];
    if (!directory[0]) return;
    int reason = dump_path(session, directory, path) ? write_file(session, path, why) : ENAMETOOLONG;
    if (reason)
        weft_log(session->env, WEFT_LOG_WARN, "client", "the flight record cannot be written to %s: %s",
                 directory, strerror(reason));
    else
        weft_log(session->env, WEFT_LOG_INFO, "client",
                 "the flight record is in %s; weft inspect %s merges all ranks'", path, directory);
}

void client_flight_dump(struct weft_session *session, const char *why)
{
    dump_into(session, weft_config_text(session->settings.config, "recorder.directory"), why);
}

void client_flight_dump_calls(struct weft_session *session)
{
    dump_into(session, weft_config_text(session->settings.config, "recorder.calls"), "the session ended");
}
