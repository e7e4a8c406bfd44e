#include "state/background_save.hpp"

#include <exception>

#include "base/log.hpp"
#include "base/signal_mask.hpp"
#include "optimizer/agreement.hpp"

namespace muonrt {

namespace {

int64_t bytes_of(const StateShard& shard) {
  return (shard.write_end - shard.write_begin) * bytes_of(shard.tensor);
}

/// Copies the elements that this rank writes to `memory`, and makes the shards refer to this copy.
void stage(std::vector<StateShard>& shards, std::vector<unsigned char>& memory, DeviceCopy& copy) {
  unsigned char* to = memory.data();
  for (StateShard& shard : shards) {
    const int64_t bytes = bytes_of(shard), skipped = shard.write_begin * bytes_of(shard.tensor);
    if (bytes == 0) continue;
    copy.read(to, static_cast<const char*>(shard.data) + skipped, bytes);
    shard.data = to;
    shard.extent = shard.extent.part(shard.write_begin, shard.write_end);
    shard.write_end -= shard.write_begin;
    shard.write_begin = 0;
    to += bytes;
  }
}

}  // namespace

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) thread_.join();
}

int64_t BackgroundSave::reserve(const Optimizer& optimizer, bool with_params) {
  const int64_t bytes = bytes_written(shards_to_save(optimizer, with_params)).all;
  if (bytes > std::ssize(memory_)) memory_ = std::vector<unsigned char>(static_cast<size_t>(bytes));
  return bytes;
}

SavedBytes BackgroundSave::begin(Optimizer& optimizer, const std::string& folder,
                                 const SaveSettings& settings) {
  bool staged = false;
  SavedBytes out;
  save_.emplace(optimizer, folder, settings, *files_);
  const auto prepare = [&] {
    // This is the error of the save until its file is written; the thread then clears the error.
    error_.emplace(Status::kOutOfMemory,
                   "save: out of memory while the file was written; save to the folder again");
    shards_ = save_->shards(optimizer);
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    out = bytes_written(shards_);
    staged = out.all <= std::ssize(memory_);
    if (staged) {
      stage(shards_, memory_, copy);
    } else {
      log(LogLevel::kWarning, [&] {
        return cat("rank ", optimizer.rank(),
                   ": the save is not in the background, because it needs ",
                   bytes_written(shards_).all, " bytes and ", memory_.size(),
                   " are reserved; call muonrt_optimizer_save_reserve()");
      });
      save_->write(shards_, copy);
      error_.reset();
    }
  };
  const auto error = capture_error([&] {
    if (const auto of_all = find_common_error(optimizer.comm(), capture_error(prepare)))
      throw *of_all;
  });
  if (error) save_.reset();
  if (error) throw *error;
  if (!staged) return out;
  try {
    const SignalMask mask;
    thread_ = std::thread([this] { write(); });
  } catch (const std::exception&) {
    log(LogLevel::kWarning, [] {
      return std::string("the save is not in the background: no thread could be started");
    });
    write();
  }
  return out;
}

void BackgroundSave::write() {
  error_ = capture_error([&] {
    DeviceCopy copy;
    save_->write(shards_, copy);
  });
}

void BackgroundSave::wait() {
  if (thread_.joinable()) thread_.join();
  const auto error = capture_error([&] { save_->publish(error_); });
  save_.reset();
  if (error) throw *error;
}

}  // namespace muonrt
