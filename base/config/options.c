/* options.c - the table of all options of weft. tests/tidy checks that each option is read. Code that reads
 * an option that is not here fails an assertion at its first call. */
#include "base/config/config.h"

#define TEXT(name_, default_, help_) {name_, WEFT_OPTION_TEXT, "", default_, 0, 0, help_, NULL}
#define CHOICE(name_, default_, choices_, help_)                     \
    {                                                                \
        name_, WEFT_OPTION_TEXT, "", default_, 0, 0, help_, choices_ \
    }
#define COUNT(name_, default_, min_, max_, help_)                     \
    {                                                                 \
        name_, WEFT_OPTION_U64, "", default_, min_, max_, help_, NULL \
    }
#define BYTES(name_, default_, min_, max_, help_) \
    {name_, WEFT_OPTION_BYTES, "bytes", default_, min_, max_, help_, NULL}
#define SWITCH(name_, default_, help_) {name_, WEFT_OPTION_BOOL, "", default_, 0, 0, help_, NULL}
#define DURATION(name_, default_, min_, max_, help_) \
    {name_, WEFT_OPTION_DURATION, "ms", default_, min_, max_, help_, NULL}

#define AS_TEXT(number_) #number_
#define KIB_TEXT(number_) AS_TEXT(number_) "KiB"
#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

const struct weft_option weft_option_table[] = {
    TEXT("job.name", "weft", "Name of the job; processes of another job are refused."),
    TEXT("job.secret_file", "",
         "File with the job's secret; without one listeners bind to loopback and peers are not challenged."),

    TEXT("client.coordinator", "", "Where the coordinator listens, as host:port; a session needs one."),
    COUNT("client.rank", "0", 0, 65535, "Rank of this process in its job, counted from 0."),
    DURATION("client.deadline", "300s", WEFT_MS(1), WEFT_SECONDS(7 * 86400),
             "Longest wait of an operation; then it ends with an error that names the late process."),

    TEXT("client.host", "",
         "Name of the host of this process: ranks that give the same one are taken to share it; empty: the "
         "system's."),

    BYTES("client.piece_bytes", "4MiB", 4 * KIB, GIB,
          "Where a rank has a CUDA device, longer all_reduces, reduces, broadcasts, sends and recvs are cut "
          "into pieces of this size; equal on all ranks."),
    TEXT("client.codec", "dense",
         "Codec of tensors whose options name none, where it is possible: dense, powersgd:rank=4, auto and "
         "so on."),

    SWITCH("client.skip_nonfinite", "no",
           "A step with a dense gradient that is NaN or infinite is skipped (WEFT_ERR_SKIPPED)."),
    COUNT("client.hash_every", "50", 0, 1000000,
          "Steps between two comparisons of the weights of all ranks (WEFT_ERR_DIVERGED); 0: never; the same "
          "on all ranks."),

    CHOICE("transport.backend", "auto", "auto|shm|verbs|ucx|tcp|sim",
           "Which transport moves the data; auto: for each peer the best that works."),
    TEXT("transport.lanes", "tcp",
         "UCX transports to use, as UCX_TLS has them: tcp, or tcp,self,sysv and so on."),
    TEXT("transport.devices", "lo", "Network devices to use, as UCX_NET_DEVICES has them."),
    BYTES("transport.eager_bytes", "0", 0, MIB,
          "Messages up to this size are sent at once, without a handshake; 0: the transport's choice."),
    TEXT("transport.ports", "",
         "TCP ports to listen on for data, as first-last (40000-40099); empty for any."),
    TEXT("transport.tune", "", "Settings of the transport itself, name=value,name=value; empty for none."),
    TEXT("transport.wrap", "",
         "Wrappers around the transport: fault:..., delay:..., trace:file=t-%e.json; several separated by "
         "';', outermost first."),

    BYTES("collective.chunk_bytes", KIB_TEXT(WEFT_CHUNK_KIB), 4 * KIB, GIB,
          "Size of the pieces a collective keeps in flight; longer ones over links that hold more on the "
          "way, and 512 KiB over tcp unless it is less than 256 KiB."),
    CHOICE("collective.plan", "auto",
           "auto|direct|ring|doubling|halving|double_tree|bruck|pat|chain|binomial|hierarchy",
           "Plan of the operations that have it; auto chooses by a model of cost."),
    TEXT("collective.links", "",
         "File of measured links (weft doctor, weft bench calibrate): by rank 0's the automatic plan chooses "
         "and codec auto begins, on all ranks; empty: plans by a constant, codecs by a measurement."),
    CHOICE("collective.retune", "off", "off|same_order|any",
           "Re-tune the automatic plan of the group of all workers by what operations take: among plans that "
           "add in the same order, or any; the same on all ranks."),
    TEXT("collective.plans", "",
         "File in which rank 0 keeps what collective.retune has settled, for the next job of as many ranks; "
         "empty: nothing is kept."),
    COUNT("collective.inflight", "16", 1, 1024, "Pieces of one collective in flight at once."),
    SWITCH("collective.move_threads", "true",
           "A thread that waits for a rank of its own processor may be moved to another that it may run on; "
           "its affinity stays what it was."),

    COUNT("server.engines", "1", 1, 64, "Shard engines (threads) of one server."),
    BYTES("server.receive_bytes", "256MiB", MIB, (uint64_t)1 << 40,
          "Receive memory of one engine; workers wait for credit when it is used up."),
    TEXT("server.listen", "127.0.0.1",
         "Address the server listens on; another than loopback needs job.secret_file. On a host with IPv6 "
         "alone 127.0.0.1 stands for ::1."),
    COUNT("server.port", "0", 0, 65535, "Control port of the coordinator; 0 takes a free one."),
    DURATION("server.heartbeat", "30s", WEFT_MS(10), WEFT_SECONDS(3600),
             "A process that has been silent for this long is taken for lost."),
    COUNT("server.hash_every", "50", 0, 1000000,
          "Steps between comparisons of the weight hash in compressed modes; 0 never compares."),

    CHOICE("log.level", "warn", "error|warn|info|debug|trace", "How much goes to the log on standard error."),
    COUNT("events.capacity", "4096", 1, 1 << 24, "Events that each engine's flight recorder keeps."),
    COUNT("recorder.operations", "2000", 1, 1 << 20,
          "Collective operations that the flight recorder keeps, with whom they wait for."),
    TEXT("recorder.directory", "",
         "Directory for the flight record of a job that fails, one file a rank; weft run sets its log "
         "directory; empty: none is written."),
    TEXT("recorder.calls", "",
         "Directory for the flight record of a session that ends in order, one file a rank, for weft bench "
         "replay; empty: none is written."),
    CHOICE("recorder.signal", "none", "none|USR1|USR2|HUP|QUIT",
           "A signal on which the flight record is written there; none: no signal handler is installed."),

    {NULL, WEFT_OPTION_TEXT, NULL, NULL, 0, 0, NULL, NULL},
};
