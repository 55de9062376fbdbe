/* origin.h - where, when and with which sources a row was measured. */
#ifndef WEFT_TOOLS_BENCH_LIB_ORIGIN_H
#define WEFT_TOOLS_BENCH_LIB_ORIGIN_H

struct bench_origin {
    char host[64];        /* name of this host */
    const char *version;  /* of weft; static */
    const char *revision; /* git revision of the sources; "": unknown; static */
    char date[32];        /* now, UTC: "2026-11-27T05:41:33Z" */
};

void bench_origin_read(struct bench_origin *origin);

#endif
