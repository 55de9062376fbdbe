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
    TEXT("job.name", "weft", "Name of the job. Processes of another job are refused."),
    TEXT("job.secret_file", "",
         "File with the job's secret. Empty: no secret; listeners then bind to loopback, and peers are not"
         " authenticated."),

    COUNT("job.wire_version", "0", 0, 2,
          "Newest wire version that this process speaks. 1: that of earlier releases, to test an upgrade. "
          "0: that of this release."),

    TEXT("client.coordinator", "", "Address of the coordinator, as host:port. Required without a launcher."),
    COUNT("client.rank", "0", 0, 65535, "Rank of this process in its job, from 0."),
    COUNT("client.ranks", "0", 0, 4096,
          "Number of ranks of a job without shards whose rank 0 coordinates it at client.coordinator. 0: the "
          "launcher's number, or another process coordinates."),
    DURATION("client.deadline", "300s", WEFT_MS(1), WEFT_SECONDS(7 * 86400),
             "Longest wait of an operation. After it the operation fails, and the error names the late "
             "process."),

    DURATION("client.report_period", "5s", 0, WEFT_SECONDS(3600),
             "Time between two reports of a rank's or a shard's figures to the coordinator, for its /metrics "
             "and weft top; at least 50 ms. 0: none."),
    TEXT("client.host", "",
         "Host name of this process. Ranks with equal names are on one host. Empty: the system's host "
         "name."),

    BYTES("client.piece_bytes", "4MiB", 4 * KIB, GIB,
          "Piece size for longer all_reduces, reduces, broadcasts, sends and recvs, if a rank has a "
          "device. Equal on all ranks."),
    CHOICE("client.nccl", "auto", "auto|no|yes",
           "After weft_nccl_open: all_reduces of device memory by NCCL in each host. auto: from 256 KiB "
           "on, where the ranks of the hosts allow it. no: never; one rank is enough. yes: of every size, "
           "and weft_nccl_open fails where it is not possible."),
    TEXT("client.codec", "dense",
         "Codec of tensors whose options name none, where possible: dense, powersgd:rank=4, auto and "
         "others."),

    CHOICE("client.push_order", "agreed", "agreed|called",
           "Order of the all_reduces of tensors. agreed: ranks may push in different orders, the most urgent "
           "tensor that all have pushed is next, and small tensors travel together. called: the order of the "
           "calls, which must be equal on all ranks, each tensor in its own operation. Equal on all ranks."),
    SWITCH("client.learn_order", "yes",
           "Learn from the first steps which of the tensors with equal priority the next forward pass needs "
           "first. no: the order of their declaration. Only with client.push_order=agreed. Equal on all "
           "ranks."),
    SWITCH("client.skip_nonfinite", "no",
           "Skip a step with a dense gradient that is NaN or infinite (WEFT_ERR_SKIPPED)."),
    TEXT("client.exposed_report", "",
         "Directory where each rank writes, at the end, which tensors its steps waited for and what to "
         "change: exposed-rankN.txt. Empty: none."),
    COUNT("client.hash_every", "50", 0, 1000000,
          "Steps between comparisons of the weights of all ranks (WEFT_ERR_DIVERGED). 0: never. Equal on "
          "all ranks."),

    CHOICE("transport.backend", "auto", "auto|shm|verbs|ucx|tcp|sim",
           "Transport for data. auto: the fastest available one for each peer."),
    TEXT("transport.lanes", "tcp",
         "UCX transports, in the form of UCX_TLS: tcp, or tcp,self,sysv and others."),
    TEXT("transport.devices", "lo",
         "Network devices, in the form of UCX_NET_DEVICES. Anything but lo requires job.secret_file."),
    BYTES("transport.eager_bytes", "0", 0, MIB,
          "Largest message that is sent without a handshake. 0: the transport's choice."),
    TEXT("transport.ports", "", "TCP ports to listen on for data, as first-last (40000-40099). Empty: any."),
    TEXT("transport.tune", "", "Settings of the transport, as name=value,name=value. Empty: none."),
    TEXT("transport.wrap", "",
         "Wrappers around the transport: fault:..., delay:..., trace:file=t-%e.json. Several are separated"
         " by ';', outermost first."),

    BYTES("collective.chunk_bytes", KIB_TEXT(WEFT_CHUNK_KIB), 4 * KIB, GIB,
          "Chunk size of a collective. Larger over links with a larger bandwidth-delay product; 512 KiB "
          "over tcp unless this is below 256 KiB."),
    CHOICE("collective.plan", "auto",
           "auto|direct|ring|doubling|halving|double_tree|bruck|pat|chain|binomial|hierarchy",
           "Plan of the operations that support it. auto: chosen by the cost model."),
    TEXT("collective.links", "",
         "File of measured links (weft doctor, weft bench calibrate). Rank 0's file is used by the "
         "automatic plan and by codec auto of all ranks. Empty: built-in costs; codec auto measures."),
    CHOICE("collective.retune", "off", "off|same_order|any",
           "Re-tuning of the automatic plan of the group of all workers by measured times: among plans with "
           "the same order of additions, or any. Equal on all ranks."),
    TEXT("collective.plans", "",
         "File in which rank 0 stores the result of collective.retune for the next job with as many ranks."
         " Empty: none."),
    COUNT("collective.inflight", "16", 2, 1024, "Chunks of one collective in flight at once."),
    SWITCH("collective.move_threads", "true",
           "A thread that waits for a rank of its own processor may be moved to another that it may run on; "
           "its affinity stays what it was."),

    DURATION("nccl.deadline", "600s", WEFT_MS(1), WEFT_SECONDS(7 * 86400),
             "Longest time of NCCL's network plugin in which a connection with open requests completes none. "
             "After it NCCL gets a remote error."),
    SWITCH("nccl.reproducible", "no",
           "All_reduce of NCCL's CollNet plugin with bits that depend on the ranks only. Equal on all "
           "ranks."),
    TEXT("nccl.fleet", "",
         "Coordinators, HOST:PORT, of the fleets whose shards sum all_reduces of NCCL's CollNet plugin: one "
         "for each entry of transport.devices, separated by commas. The job's workers are the nodes. Empty: "
         "none."),
    TEXT(
        "nccl.trace", "",
        "File in which NCCL's profiler plugin records collectives and their network steps; %h, %p and %e are "
        "host, process and rank. Empty: none."),

    COUNT("server.engines", "1", 1, 64, "Shard engines of one server, one thread each."),
    BYTES("server.receive_bytes", "256MiB", MIB, (uint64_t)1 << 40,
          "Receive memory of one engine. If it is used up, workers wait for credit."),
    BYTES("server.round_bytes", "4MiB", 0, (uint64_t)1 << 40,
          "Receive memory in use above which an engine opens no further round, so that rounds stay in the "
          "caches; at most half of the last-level cache over the engines of the server. 0: one round at a "
          "time."),
    COUNT("server.copies", "0", 0, 1,
          "Copies that shards keep of each chunk on another host: a lost shard then does not end the job. "
          "Read by the process that coordinates. 0: none."),
    SWITCH("server.copies_on_one_host", "no",
           "A copy may be on the host of the original: for tests, it does not survive the loss of a host."),
    TEXT("server.zone", "",
         "Failure domain of this server, for example a rack: copies of its slots are in another zone if "
         "there is a server in one. Empty: unknown."),
    SWITCH("server.rollback", "no",
           "A lost shard with the only copy of chunks does not end the job: it begins again from its last "
           "snapshot. Read by the process that coordinates. Needs snapshot.folder or snapshot.restore."),
    BYTES("server.copy_bytes", "64MiB", MIB, (uint64_t)1 << 40,
          "Memory of one engine for steps that its copies have received and not applied. A chunk must fit."),
    BYTES("server.move_rate", "0", 0, (uint64_t)1 << 40,
          "Bytes per second that an engine sends to make new copies of its slots, so that steps keep enough "
          "of the links. A chunk is sent as a whole. 0: no limit."),
    TEXT("server.listen", "127.0.0.1",
         "Address to listen on. Anything but loopback requires job.secret_file. On a host without IPv4, "
         "127.0.0.1 means ::1."),
    COUNT("server.port", "0", 0, 65535, "Control port of the coordinator. 0: any free port."),
    DURATION("server.heartbeat", "30s", WEFT_MS(10), WEFT_SECONDS(3600),
             "Silence after which a process counts as lost."),
    DURATION("server.resume", "5s", 0, WEFT_SECONDS(600),
             "Time in which a process may replace a broken control connection before it counts as lost. A "
             "dead process on the coordinator's host is lost at once. 0: a broken connection is a lost "
             "process."),
    TEXT("server.store", "",
         "File in which another shard process finds the job if the coordinating one ends. The same for all "
         "shard processes, on a file system that they share; one for each job. Needs server.copies=1. Empty: "
         "the loss of the coordinator ends the job."),
    COUNT("server.hash_every", "50", 0, 1000000,
          "Steps between comparisons of copies with their leaders, and of the weight hash with codecs. 0: "
          "never."),

    TEXT("snapshot.folder", "",
         "Folder for snapshots of the shards' weights and optimizer states, the same for all shards. Empty: "
         "no snapshots."),
    TEXT("snapshot.every", "10min",
         "Interval of snapshots: steps (\"100 steps\") or a time (\"60s\", \"10min\")."),
    COUNT("snapshot.keep", "3", 1, 1000000,
          "Snapshots that stay in the folder. Older ones are removed after each snapshot."),
    CHOICE("snapshot.weights", "f32", "f32|bf16|int8",
           "Type of the weights in a snapshot. Optimizer states are always f32."),
    BYTES("snapshot.memory_bytes", "256MiB", MIB, (uint64_t)1 << 40,
          "Memory of a server for captured arrays that are not on disk yet. If it is used up, pushes wait."),
    TEXT("snapshot.hook", "",
         "Program that copies the files of a snapshot to another store: PROGRAM put FILE NAME, get NAME "
         "FILE, list PREFIX, delete NAME. Empty: none."),
    COUNT("snapshot.hook_keep", "0", 0, 1000000,
          "Snapshots that stay in the other store of snapshot.hook. 0: none is removed there."),
    TEXT("snapshot.restore", "",
         "Snapshot that the shards restore at the start, as FOLDER or FOLDER:STEP. Without STEP the newest "
         "one. Empty: none."),

    CHOICE("log.level", "warn", "error|warn|info|debug|trace",
           "Highest level that is logged to standard error."),
    CHOICE("log.format", "text", "text|json",
           "Format of the log: lines of text, or one JSON object in each line with time, level, module, job, "
           "rank and text."),
    COUNT("events.capacity", "4096", 1, 1 << 24, "Events that each engine's flight recorder keeps."),
    COUNT("recorder.operations", "2000", 1, 1 << 20,
          "Collective operations that the flight recorder keeps, with the ranks they wait for."),
    TEXT("recorder.directory", "",
         "Directory for the flight record of a job that fails, one file per rank; weft run sets its log "
         "directory. Empty: none is written."),
    TEXT("recorder.calls", "",
         "Directory for the flight record of a session that ends normally, one file per rank, for weft "
         "bench replay. Empty: none is written."),
    CHOICE("recorder.signal", "none", "none|USR1|USR2|HUP|QUIT",
           "Signal that writes the flight record. none: no signal handler is installed."),

    {NULL, WEFT_OPTION_TEXT, NULL, NULL, 0, 0, NULL, NULL},
};
