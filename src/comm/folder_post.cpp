#include "comm/folder_post.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "comm/folder_meeting.hpp"
#include "comm/looks.hpp"

namespace muonrt {

namespace {

class FolderPost final : public Post {
 public:
  FolderPost(const FolderMeeting& meeting, Deadline deadline)
      : Post(meeting.rank, meeting.size), folder_(meeting.path, meeting.run_id, meeting.rank) {
    meet_in(folder_, meeting, deadline);
    for (int r = 0; r < size(); ++r) watched_.push_back(r != rank() && folder_.has_lock(r));
  }

  ~FolderPost() override {
    try {
      folder_.write(cat("bye.", rank()), nullptr, 0);
      folder_.drop_lock();
      for (int r = 0; r < size(); ++r) {
        if (!folder_.exists(cat("bye.", r))) return;
      }
      folder_.remove_all();
    } catch (...) {  // the files stay
    }
  }

  std::string name() const override { return "folder"; }

  void send(uint64_t channel, int32_t to, const void* data, int64_t bytes, Deadline) override {
    if (const auto error = published(channel)) throw *error;
    folder_.write(message_name(channel, rank(), to, next(sent_, channel, to)), data, bytes);
  }

  void receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
               Deadline deadline) override {
    const std::string file = message_name(channel, from, rank(), next(received_, channel, from));
    for (Looks looks;; looks.pause()) {
      if (const auto error = published(channel)) throw *error;
      const bool left =
          folder_.exists(left_name(channel, from)) || folder_.exists(cat("bye.", from)) ||
          (looks.rarely() && watched_[static_cast<size_t>(from)] && folder_.lacks_lock(from));
      std::string content;
      if (folder_.read(file, content)) {
        folder_.remove(file);
        const auto size = static_cast<int64_t>(content.size());
        if (size != bytes) throw another_size(from, size, bytes);
        std::memcpy(data, content.data(), content.size());
        return;
      }
      if (left) throw gone(from);
      if (deadline.passed()) throw not_in_time(from);
    }
  }

  void publish(uint64_t channel, Status status, const std::string& message) noexcept override {
    try {
      std::string content(sizeof(int32_t), '\0');
      const auto value = static_cast<int32_t>(status);
      std::memcpy(content.data(), &value, sizeof value);
      const std::string text = reported_by(rank(), status, message).message();
      content += text;
      // The first one counts.
      folder_.write(error_name(channel), content.data(), static_cast<int64_t>(content.size()),
                    true);
    } catch (...) {
    }
  }

  std::optional<Error> published(uint64_t channel) override {
    std::string content;
    if (!folder_.read(error_name(channel), content) || content.size() < sizeof(int32_t))
      return std::nullopt;
    int32_t status = 0;
    std::memcpy(&status, content.data(), sizeof status);
    return Error(static_cast<Status>(status), content.substr(sizeof status));
  }

  void leave(uint64_t channel) noexcept override {
    try {
      folder_.write(left_name(channel, rank()), nullptr, 0);
    } catch (...) {
    }
  }

 private:
  using Counts = std::map<std::pair<uint64_t, int32_t>, int64_t>;

  int64_t next(Counts& counts, uint64_t channel, int32_t peer) {
    const std::lock_guard lock(mutex_);
    return counts[{channel, peer}]++;
  }
  static std::string message_name(uint64_t channel, int32_t from, int32_t to, int64_t number) {
    return cat("m.", channel, '.', from, '.', to, '.', number);
  }
  static std::string error_name(uint64_t channel) { return cat("e.", channel); }
  static std::string left_name(uint64_t channel, int32_t of) { return cat("l.", channel, '.', of); }

  RunFolder folder_;
  std::vector<bool> watched_;  // ranks whose lock can be seen
  std::mutex mutex_;
  Counts sent_, received_;
};

}  // namespace

std::shared_ptr<Post> make_folder_post(const FolderMeeting& m, int64_t timeout_ms) {
  MUONRT_REQUIRE(m.size >= 1 && m.rank >= 0 && m.rank < m.size, Status::kInvalidArgument,
                 "shared folder: rank ", m.rank, " of ", m.size,
                 " ranks does not exist; set 0 <= rank < size");
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  MUONRT_REQUIRE(!m.run_id.empty() && m.run_id.size() <= 64 && m.run_id != "." &&
                     m.run_id != ".." && std::all_of(m.run_id.begin(), m.run_id.end(), good),
                 Status::kInvalidArgument, "shared folder: run id is '", m.run_id,
                 "' (1 to 64 letters, digits, '.', '-', '_'); name this run, differently from all "
                 "others");
  MUONRT_REQUIRE(!m.path.empty(), Status::kInvalidArgument,
                 "shared folder: path is empty; pass a folder that all ranks reach");
  MUONRT_REQUIRE(m.secret.empty() || m.secret.size() >= kSecretBytes, Status::kInvalidArgument,
                 "shared folder: the secret has ", m.secret.size(), " bytes (at least ",
                 kSecretBytes, ", or none); draw a longer one for each run");
  return std::make_shared<FolderPost>(m, Deadline::in_ms(timeout_ms));
}

}  // namespace muonrt
