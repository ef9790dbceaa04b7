// The descriptor of berth/v1/inference.proto with its comments, which generated code leaves out: a serialised
// FileDescriptorSet. berth-cli takes the help of its flags from these comments.
#ifndef BERTH_PROTO_INFERENCE_DESCRIPTOR_H_
#define BERTH_PROTO_INFERENCE_DESCRIPTOR_H_

#include <cstddef>

namespace berth {

extern const unsigned char kInferenceDescriptor[];
extern const size_t kInferenceDescriptorBytes;

}  // namespace berth

#endif  // BERTH_PROTO_INFERENCE_DESCRIPTOR_H_
