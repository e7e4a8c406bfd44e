#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "state/save.hpp"

namespace muonrt {

/// Saves while steps go on: state is copied, and a thread that uses no communicator writes it.
class BackgroundSave {
 public:
  explicit BackgroundSave(std::unique_ptr<Files> files = std::make_unique<Files>())
      : files_(std::move(files)) {}
  /// What was not published leaves no file.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Takes memory for what this rank writes. @return  its bytes. Errors: OUT_OF_MEMORY.
  int64_t reserve(const Optimizer& optimizer, bool with_params);
  /// Collective. Where less memory is there than this rank writes, it writes now.
  /// Errors: as save_state, INVALID_STATE where one is under way.
  void begin(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings);
  /// Waits for the thread and publishes. Collective. Errors: as save_state, INVALID_STATE where
  /// none is under way.
  void wait();
  bool in_progress() const { return save_.has_value(); }

 private:
  void write();

  std::unique_ptr<Files> files_;
  std::vector<unsigned char> memory_;
  std::optional<Save> save_;
  std::vector<StateShard> shards_;  // that the thread writes
  std::thread thread_;
  std::optional<Error> error_;  // unless this rank's file is written
};

}  // namespace muonrt
