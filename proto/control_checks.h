/* control_checks.h - memory and checks that decoders of control.proto share. Internal to proto. */
#ifndef WEFT_PROTO_CONTROL_CHECKS_H
#define WEFT_PROTO_CONTROL_CHECKS_H

#include "proto/proto.h"

struct control_memory {
    struct weft_env *env;
    size_t left_bytes;
};
/* An allocator with a budget for `bytes` packed bytes; `memory` must outlive it. */
ProtobufCAllocator control_allocator(struct control_memory *memory, struct weft_env *env, size_t bytes);

/* Are all fields within their limits? */
bool control_name_ok(const char *name, size_t bytes_min);
bool control_member_ok(const Weft__Control__Member *member);
bool control_member_named_ok(const Weft__Control__Member *member); /* without its addresses */
bool control_shrunk_ok(const Weft__Control__Shrunk *shrunk);
bool control_map_ok(const Weft__Control__Map *map);
bool control_cost_ok(const Weft__Control__LinkCost *cost);
bool control_declared_ok(const Weft__Control__Declared *declared);

#endif
