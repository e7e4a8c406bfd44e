#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "state/save.hpp"

namespace muonrt {

/// Saves a checkpoint while steps continue. begin() copies the state. A thread then writes the
/// copy, without using the communicator.
class BackgroundSave {
 public:
  explicit BackgroundSave(std::unique_ptr<Files> files = std::make_unique<Files>())
      : files_(std::move(files)) {}
  /// Waits for the thread. If the save was not published, removes its file.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Allocates memory for the state that this rank writes, and returns its size in bytes.
  /// Errors: OUT_OF_MEMORY.
  int64_t reserve(const Optimizer& optimizer, bool with_params);
  int64_t reserved_bytes() const { return std::ssize(memory_); }
  /// Begins a save. Must not be called while a save is in progress. If the reserved memory is too
  /// small for the state that this rank writes, writes the file before returning. Collective.
  /// Errors: the same as save_state().
  SavedBytes begin(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings);
  /// Waits for the thread and publishes the save. A save must be in progress. Collective.
  /// Errors: the same as save_state().
  void wait();
  bool in_progress() const { return save_.has_value(); }

 private:
  void write();

  std::unique_ptr<Files> files_;
  std::vector<unsigned char> memory_;
  std::optional<Save> save_;
  std::vector<StateShard> shards_;  // the shards that the thread writes
  std::thread thread_;
  std::optional<Error> error_;  // empty after this rank's file has been written
};

}  // namespace muonrt
