/* weftd_snapshot_metrics.c - figures of this process's snapshots on /metrics. HTTP thread. */
#include <inttypes.h>
#include <stdio.h>

#include "server/daemon/weftd_page.h"
#include "server/daemon/weftd_snapshot.h"

static void write_head(const struct weftd *weftd, struct weftd_page *page, const char *name, const char *kind,
                       const char *help)
{
    weftd_page_head(page, name, kind, help);
    weftd_page_name(page, weftd, name);
    weftd_page_print(page, ",shard=\"%u\"} ", page->job->index);
}

static void write_count(const struct weftd *weftd, struct weftd_page *page, const char *name,
                        const char *kind, const char *help, uint64_t value)
{
    write_head(weftd, page, name, kind, help);
    weftd_page_print(page, "%" PRIu64 "\n", value);
}

static void write_seconds(const struct weftd *weftd, struct weftd_page *page, const char *name,
                          const char *help, uint64_t ns)
{
    write_head(weftd, page, name, "counter", help);
    weftd_page_print(page, "%.6f\n", (double)ns * 1e-9);
}

/* The figures of a commit are those of the process that coordinates. */
static void write_commits(const struct weftd *weftd, struct weftd_snapshots *snapshots,
                          struct weftd_page *page)
{
    const struct snapshot_stats *stats = &snapshots->stats;
    char labels[32];
    pthread_mutex_lock(&snapshots->writer.lock);
    const struct weft_histogram seconds = snapshots->writer.seconds, bytes = snapshots->writer.bytes;
    pthread_mutex_unlock(&snapshots->writer.lock);
    write_count(weftd, page, "weft_snapshot_commits_total", "counter", "Snapshots committed.",
                atomic_load(&stats->committed));
    write_count(weftd, page, "weft_snapshot_commit_failures_total", "counter",
                "Manifests that could not be written.", atomic_load(&stats->failed));
    write_count(weftd, page, "weft_snapshot_step", "gauge", "Step of the last committed snapshot; 0: none.",
                atomic_load(&stats->step));
    write_count(weftd, page, "weft_snapshot_commit_time_seconds", "gauge",
                "Time of the last commit, since 1970; 0: none.", atomic_load(&stats->time_s));
    snprintf(labels, sizeof labels, ",shard=\"%u\"", page->job->index);
    weftd_page_head(page, "weft_snapshot_seconds", "histogram",
                    "Time from the end of the step to the commit of its snapshot.");
    weftd_page_histogram(page, weftd, "weft_snapshot_seconds", labels, &seconds);
    weftd_page_head(
        page, "weft_snapshot_bytes", "histogram",
        "Bytes of the files of a committed snapshot, with the pieces that earlier snapshots have written.");
    weftd_page_byte_histogram(page, weftd, "weft_snapshot_bytes", labels, &bytes);
}

void weftd_snapshot_metrics_write(struct weftd *weftd, struct weftd_page *page)
{
    struct weftd_snapshots *snapshots = weftd->snapshots;
    if (!snapshots) return;
    const struct snapshot_stats *stats = &snapshots->stats;
    write_count(weftd, page, "weft_snapshot_pieces_total", "counter", "Pieces stored, known contents too.",
                atomic_load(&stats->pieces));
    write_count(weftd, page, "weft_snapshot_captured_bytes_total", "counter",
                "Arrays of these pieces, as f32.", atomic_load(&stats->bytes));
    write_count(weftd, page, "weft_snapshot_stored_bytes_total", "counter", "Files of these pieces.",
                atomic_load(&stats->stored_bytes));
    write_count(weftd, page, "weft_snapshot_memory_used_bytes", "gauge",
                "Captured arrays that are not on disk yet.", atomic_load(&snapshots->used_bytes));
    write_seconds(weftd, page, "weft_snapshot_write_seconds_total", "Time of the thread that stores pieces.",
                  atomic_load(&stats->write_ns));
    write_seconds(weftd, page, "weft_snapshot_stall_seconds_total",
                  "Time that pushes waited for memory of snapshots.", atomic_load(&stats->stall_ns));
    if (page->job->coordinates) write_commits(weftd, snapshots, page);
}
