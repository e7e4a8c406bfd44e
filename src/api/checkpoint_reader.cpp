#include "muonrt/checkpoint_reader.h"

#include <bit>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "state/checkpoint_reader.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

std::string folder_argument(const char* folder, const char* function) {
  require_pointer(folder, function, "folder");
  MUONRT_REQUIRE(*folder, kInvalidArg, function, ": folder is empty; pass the path of a folder");
  return folder;
}

int32_t kind_argument(const enum muonrt_state_kind& kind, const char* function) {
  // A C program can pass any number. In C++, reading an enum whose number is out of range is
  // undefined behavior.
  const auto value = std::bit_cast<int32_t>(kind);
  MUONRT_REQUIRE(*kind_name(value), kInvalidArg, function, ": kind is ", value,
                 ", but must be between ", MUONRT_STATE_PARAM, " and ", MUONRT_STATE_NORMUON,
                 "; use one of these");
  return value;
}

/// @param dtype  Name of the dtype in the manifest or in safetensors.
muonrt_dtype_t c_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "f32"     ? MUONRT_DTYPE_F32
         : dtype == "BF16" || dtype == "bf16" ? MUONRT_DTYPE_BF16
                                              : 0;
}

muonrt_checkpoint_tensor_t c_tensor(CheckpointReader& reader, int64_t index) {
  const CheckpointReader::Tensor& tensor = reader.at(index);
  const ManifestParam& p = *tensor.param;
  const CheckpointReader::Data& data = reader.data_of(index);
  muonrt_checkpoint_tensor_t out;
  muonrt_checkpoint_tensor_init(&out);
  out.kind = tensor.kind;
  out.param = p.name.c_str();
  out.dtype = c_dtype(tensor.dtype ? *tensor.dtype : p.dtype);
  out.ndim = static_cast<int32_t>(data.shape.size());
  out.shape = data.shape.data();
  out.bytes = data.bytes;
  out.n_parts = data.parts;
  out.has_data = reader.has_data(tensor) ? 1 : 0;
  out.role = p.role == "muon" ? MUONRT_ROLE_MUON : MUONRT_ROLE_ADAMW;
  out.update_count = p.updates;
  out.hash = p.hash;
  out.momentum = p.momentum_constant;
  out.momentum_kind = p.momentum == "heavy_ball" ? MUONRT_MOMENTUM_HEAVY_BALL : MUONRT_MOMENTUM_EMA;
  return out;
}

}  // namespace

extern "C" {

muonrt_status_t muonrt_checkpoint_list(char* buffer, int64_t capacity, int64_t* needed,
                                       const char* folder) {
  return as_status([&] {
    std::string text;
    for (const std::string& name :
         list_manifests(folder_argument(folder, "muonrt_checkpoint_list")))
      text += cat(text.empty() ? "" : "\n", name);
    api::write_text(text, buffer, capacity, needed);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_open(muonrt_checkpoint_t** checkpoint, const char* folder,
                                       const char* manifest) {
  return as_status([&] {
    const char* const function = "muonrt_checkpoint_open";
    require_pointer(checkpoint, function, "checkpoint");
    *checkpoint = nullptr;
    const std::string path = folder_argument(folder, function), name = manifest ? manifest : "";
    MUONRT_REQUIRE(name.find('/') == name.npos, kInvalidArg, function, ": manifest is ",
                   in_quotes(name),
                   ", but must be the name of a file in the folder; leave out the path");
    auto handle = std::make_unique<muonrt_checkpoint>();
    handle->body = std::make_unique<CheckpointReader>(path, name);
    *checkpoint = api::release_handle(std::move(handle));
    return Status::kOk;
  });
}

void muonrt_checkpoint_destroy(muonrt_checkpoint_t* checkpoint) {
  as_status([&] {
    api::destroy_handle(checkpoint, "muonrt_checkpoint_destroy", "checkpoint");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_get_info(muonrt_checkpoint_info_t* info,
                                           const muonrt_checkpoint_t* checkpoint) {
  return as_status([&] {
    const CheckpointReader& reader = api::unwrap(checkpoint, "muonrt_checkpoint_get_info");
    require_pointer(info, "muonrt_checkpoint_get_info", "info");
    const Manifest& m = reader.manifest();
    muonrt_checkpoint_info_t out;
    muonrt_checkpoint_info_init(&out);
    out.format_version = kCheckpointVersion;
    out.with_params = m.with_params ? 1 : 0;
    out.n_files = static_cast<int32_t>(m.files.size());
    out.bytes = reader.bytes();
    out.step = m.step;
    out.save = m.save;
    out.seed = m.seed;
    out.n_params = std::ssize(m.params);
    out.n_tensors = std::ssize(reader.tensors());
    api::write_struct(info, out, "info");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_get_manifest(char* buffer, int64_t capacity, int64_t* needed,
                                               const muonrt_checkpoint_t* checkpoint) {
  return as_status([&] {
    const CheckpointReader& reader = api::unwrap(checkpoint, "muonrt_checkpoint_get_manifest");
    api::write_text(reader.manifest_text(), buffer, capacity, needed);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_get_tensor(muonrt_checkpoint_tensor_t* tensor,
                                             muonrt_checkpoint_t* checkpoint, int64_t index) {
  return as_status([&] {
    CheckpointReader& reader = api::unwrap(checkpoint, "muonrt_checkpoint_get_tensor");
    require_pointer(tensor, "muonrt_checkpoint_get_tensor", "tensor");
    api::struct_size_of(tensor, "tensor", sizeof *tensor);
    api::write_struct(tensor, c_tensor(reader, index), "tensor");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_find_tensor(int64_t* index, const muonrt_checkpoint_t* checkpoint,
                                              const char* param, enum muonrt_state_kind kind) {
  return as_status([&] {
    const char* const function = "muonrt_checkpoint_find_tensor";
    const CheckpointReader& reader = api::unwrap(checkpoint, function);
    require_pointer(index, function, "index");
    require_pointer(param, function, "param");
    *index = reader.find(param, kind_argument(kind, function));
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_read(void* data, int64_t bytes, muonrt_checkpoint_t* checkpoint,
                                       int64_t index) {
  return as_status([&] {
    const char* const function = "muonrt_checkpoint_read";
    CheckpointReader& reader = api::unwrap(checkpoint, function);
    MUONRT_REQUIRE(bytes >= 0, kInvalidArg, function, ": bytes is ", bytes,
                   ", but must be 0 or more; pass the size of the tensor");
    if (bytes > 0) require_pointer(data, function, "data");
    reader.read(index, {static_cast<unsigned char*>(data), static_cast<size_t>(bytes)});
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_verify(muonrt_checkpoint_t* checkpoint) {
  return as_status([&] {
    api::unwrap(checkpoint, "muonrt_checkpoint_verify").verify();
    return Status::kOk;
  });
}

muonrt_status_t muonrt_checkpoint_get_problems(char* buffer, int64_t capacity, int64_t* needed,
                                               const muonrt_checkpoint_t* checkpoint) {
  return as_status([&] {
    const CheckpointReader& reader = api::unwrap(checkpoint, "muonrt_checkpoint_get_problems");
    api::write_text(reader.problems(), buffer, capacity, needed);
    return Status::kOk;
  });
}

}  // extern "C"
