#include "state/background_save.hpp"

#include <exception>

#include "base/signal_mask.hpp"
#include "optimizer/agreement.hpp"

namespace muonrt {

namespace {

int64_t bytes_written(const LocalPiece& piece) {
  return (piece.last - piece.first) * bytes_of(piece.tensor);
}

int64_t bytes_written(const std::vector<LocalPiece>& pieces) {
  int64_t out = 0;
  for (const LocalPiece& piece : pieces) out = checked_add(out, bytes_written(piece));
  return out;
}

/// Copies what of the pieces is written, which then lies in `memory`.
void stage(std::vector<LocalPiece>& pieces, std::vector<unsigned char>& memory, DeviceCopy& copy) {
  unsigned char* to = memory.data();
  for (LocalPiece& piece : pieces) {
    const int64_t bytes = bytes_written(piece), skipped = piece.first * bytes_of(piece.tensor);
    if (bytes == 0) continue;
    copy.read(to, static_cast<const char*>(piece.data) + skipped, bytes);
    piece.data = to;
    piece.extent = piece.extent.part(piece.first, piece.last);
    piece.last -= piece.first;
    piece.first = 0;
    to += bytes;
  }
}

}  // namespace

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) thread_.join();
}

int64_t BackgroundSave::reserve(const Optimizer& optimizer, bool with_params) {
  const int64_t bytes = bytes_written(local_pieces(optimizer, with_params));
  if (bytes > std::ssize(memory_)) memory_ = std::vector<unsigned char>(static_cast<size_t>(bytes));
  return bytes;
}

void BackgroundSave::begin(Optimizer& optimizer, const std::string& folder,
                           const SaveSettings& settings) {
  bool staged = false;
  save_.emplace(optimizer, folder, settings, *files_);
  const auto prepare = [&] {
    error_.emplace(Status::kOutOfMemory, "save: there was no memory to write it");
    pieces_ = local_pieces(optimizer, settings.with_params);
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    staged = bytes_written(pieces_) <= std::ssize(memory_);
    if (staged) {
      stage(pieces_, memory_, copy);
    } else {
      save_->write(pieces_, copy);
      error_.reset();
    }
  };
  const auto error = error_of([&] {
    if (const auto of_all = agreed(optimizer.comm(), error_of(prepare))) throw *of_all;
  });
  if (error) save_.reset();
  if (error) throw *error;
  if (!staged) return;
  try {
    const SignalMask mask;
    thread_ = std::thread([this] { write(); });
  } catch (const std::exception&) {
    write();  // there is no thread left, or no memory for one
  }
}

void BackgroundSave::write() {
  error_ = error_of([&] {
    DeviceCopy copy;
    save_->write(pieces_, copy);
  });
}

void BackgroundSave::wait() {
  if (thread_.joinable()) thread_.join();
  const auto error = error_of([&] { save_->publish(error_); });
  save_.reset();
  if (error) throw *error;
}

}  // namespace muonrt
