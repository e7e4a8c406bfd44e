#include "command/state/saved.hpp"

#include "opt_json/strict_json.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

std::string texts_json(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ",") + json_text(text);
  return "[" + out + "]";
}

const char* kind_text(int32_t kind) {
  switch (kind) {
    case MUONRT_STATE_PARAM:
      return "param";
    case MUONRT_STATE_MOMENTUM:
      return "momentum";
    case MUONRT_STATE_VARIANCE:
      return "variance";
    case MUONRT_STATE_MASTER:
      return "master";
    case MUONRT_STATE_REMAINDER:
      return "remainder";
    default:
      return "normuon";
  }
}

const char* dtype_text(const muonrt_checkpoint_tensor_t& tensor) {
  return tensor.dtype == MUONRT_DTYPE_F32    ? "F32"
         : tensor.dtype == MUONRT_DTYPE_BF16 ? "BF16"
                                             : "U16";
}

std::string tensor_text(const muonrt_checkpoint_tensor_t& tensor) {
  return std::string(kind_text(tensor.kind)) + " of param " + shown(tensor.param);
}

int64_t element_size(const muonrt_checkpoint_tensor_t& tensor) {
  return tensor.dtype == MUONRT_DTYPE_F32 ? 4 : 2;
}

std::vector<muonrt_checkpoint_tensor_t> tensors_with_data(Checkpoint& checkpoint) {
  std::vector<muonrt_checkpoint_tensor_t> out;
  for (int64_t i = 0; i < checkpoint.info().n_tensors; ++i) {
    const muonrt_checkpoint_tensor_t tensor = checkpoint.tensor(i);
    if (tensor.bytes > 0) out.push_back(tensor);
  }
  return out;
}

}  // namespace muonrt::tool
