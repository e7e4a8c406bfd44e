/// @file muonrt/checkpoint_reader.hpp
/// The part of muonrt/muonrt.hpp that wraps muonrt/checkpoint_reader.h.
#ifndef MUONRT_CHECKPOINT_READER_HPP
#define MUONRT_CHECKPOINT_READER_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/checkpoint_reader.h"
#include "muonrt/error.hpp"

namespace muonrt {
inline namespace v0 {

/// An open checkpoint, which can be read without an optimizer; see muonrt/checkpoint_reader.h. The
/// object can be moved but not copied. The destructor calls muonrt_checkpoint_destroy().
class Checkpoint {
 public:
  /// Opens a checkpoint; see muonrt_checkpoint_open().
  /// @param folder    Path of the folder.
  /// @param manifest  File name of a manifest in the folder; "" for the newest checkpoint.
  explicit Checkpoint(const std::string& folder, const std::string& manifest = "") {
    muonrt_checkpoint_t* handle = nullptr;
    check(muonrt_checkpoint_open(&handle, folder.c_str(), manifest.c_str()));
    handle_.reset(handle);
  }
  /// @return The file names of the manifests in a folder, the newest first; see
  /// muonrt_checkpoint_list().
  static std::vector<std::string> list(const std::string& folder) {
    return detail::lines([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_checkpoint_list(buffer, capacity, needed, folder.c_str());
    });
  }
  /// @return The step number and other properties of the checkpoint; see
  /// muonrt_checkpoint_get_info().
  muonrt_checkpoint_info_t info() const {
    auto out = detail::filled(muonrt_checkpoint_info_init_sized);
    check(muonrt_checkpoint_get_info(&out, get()));
    return out;
  }
  /// @return The manifest in JSON; see muonrt_checkpoint_get_manifest().
  std::string manifest() const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_checkpoint_get_manifest(buffer, capacity, needed, get());
    });
  }
  /// @return The description of tensor `index`; see muonrt_checkpoint_get_tensor().
  muonrt_checkpoint_tensor_t tensor(int64_t index) {
    auto out = detail::filled(muonrt_checkpoint_tensor_init_sized);
    check(muonrt_checkpoint_get_tensor(&out, get(), index));
    return out;
  }
  /// @return The index of the tensor with this kind of state; see muonrt_checkpoint_find_tensor().
  int64_t find_tensor(const std::string& param, enum muonrt_state_kind kind) const {
    return detail::value<int64_t>(muonrt_checkpoint_find_tensor, get(), param.c_str(), kind);
  }
  /// @return All bytes of tensor `index`; see muonrt_checkpoint_read().
  std::vector<unsigned char> read(int64_t index) {
    std::vector<unsigned char> data(static_cast<size_t>(tensor(index).bytes));
    check(muonrt_checkpoint_read(data.data(), static_cast<int64_t>(data.size()), get(), index));
    return data;
  }
  /// Verifies every byte of the checkpoint; see muonrt_checkpoint_verify().
  void verify() { check(muonrt_checkpoint_verify(get())); }
  /// @return The problems that the last call to verify() found; see
  /// muonrt_checkpoint_get_problems().
  std::vector<std::string> problems() const {
    return detail::lines([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_checkpoint_get_problems(buffer, capacity, needed, get());
    });
  }
  /// @return The handle, which this object owns.
  muonrt_checkpoint_t* get() const noexcept { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(muonrt_checkpoint_t* p) const noexcept { muonrt_checkpoint_destroy(p); }
  };
  std::unique_ptr<muonrt_checkpoint_t, Destroy> handle_;
};

}  // namespace v0
}  // namespace muonrt

#endif  // MUONRT_CHECKPOINT_READER_HPP
