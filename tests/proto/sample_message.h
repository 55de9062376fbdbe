/* sample_message.h - one message of each type with a value in each field, made from the descriptors of
 * protobuf-c. A value depends on the name of its field, so a recorded message shows which field each number
 * is. The values are within the limits of proto/wire_limits.h. */
#ifndef WEFT_TESTS_PROTO_SAMPLE_MESSAGE_H
#define WEFT_TESTS_PROTO_SAMPLE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

/* Fields "Message.field" that stay empty, between spaces: " Declared.runs Hello.job ". */
struct sample_message_rule {
    const char *without;
};

/* A message of Control or Stored with the body of this index in its descriptor. Its memory stays
 * until the process ends: for tests. */
ProtobufCMessage *sample_message_make(const ProtobufCMessageDescriptor *type, unsigned body,
                                      const struct sample_message_rule *rule);
/* Are all fields that the message has those of the sample, and none unknown? Writes the path of the first
 * other one. */
bool sample_message_matches(const ProtobufCMessage *message, char *path_out, size_t path_bytes);

#endif
