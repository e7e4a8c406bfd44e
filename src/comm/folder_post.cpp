#include "comm/folder_post.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/handshake.hpp"
#include "comm/socket.hpp"
#include "comm/transport.hpp"

namespace muonrt {

namespace {

/// What a rank writes of itself; rank 0 answers with all of them, so that nobody takes the answer
/// of an earlier run for this one's.
struct Card {
  int32_t rank, size, version, reserved;
  Nonce nonce;
};

/// A wait that looks again and again, at first often.
class Looks {
 public:
  void pause() {
    std::this_thread::sleep_for(std::chrono::microseconds(us_));
    waited_us_ += us_;
    us_ = std::min<int64_t>(us_ * 5 / 4 + 1, 10000);
  }
  /// For what is looked at ten times a second.
  bool rarely() {
    if (waited_us_ < 100'000) return false;
    waited_us_ = 0;
    return true;
  }

 private:
  int64_t us_ = 100, waited_us_ = 0;
};

class FolderPost final : public Post {
 public:
  FolderPost(const FolderMeeting& meeting, Deadline deadline)
      : Post(meeting.rank, meeting.size), folder_(cat(meeting.path, '/', meeting.run_id)) {
    if (rank() == 0) {
      receive_all(meeting, deadline);
    } else {
      go_to_rank_0(meeting, deadline);
    }
    for (int r = 0; r < size(); ++r) watched_.push_back(r != rank() && has_lock(r));
  }

  ~FolderPost() override {
    try {
      write_file(cat("bye.", rank()), nullptr, 0);
      alive_ = Socket();
      for (int r = 0; r < size(); ++r) {
        if (!exists(cat("bye.", r))) return;
      }
      remove_all();
    } catch (...) {  // the files stay
    }
  }

  std::string name() const override { return "folder"; }

  void send(uint64_t channel, int32_t to, const void* data, int64_t bytes, Deadline) override {
    if (const auto error = published(channel)) throw *error;
    write_file(message_name(channel, rank(), to, next(sent_, channel, to)), data, bytes);
  }

  void receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
               Deadline deadline) override {
    const std::string file = message_name(channel, from, rank(), next(received_, channel, from));
    for (Looks looks;; looks.pause()) {
      if (const auto error = published(channel)) throw *error;
      const bool left = exists(left_name(channel, from)) || exists(cat("bye.", from)) ||
                        (looks.rarely() && watched_[static_cast<size_t>(from)] && !has_lock(from));
      std::string content;
      if (read_file(file, content)) {
        unlink(path(file).c_str());
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
      write_file(error_name(channel), content.data(), static_cast<int64_t>(content.size()), true);
    } catch (...) {
    }
  }

  std::optional<Error> published(uint64_t channel) override {
    std::string content;
    if (!read_file(error_name(channel), content) || content.size() < sizeof(int32_t))
      return std::nullopt;
    int32_t status = 0;
    std::memcpy(&status, content.data(), sizeof status);
    return Error(static_cast<Status>(status), content.substr(sizeof status));
  }

  void leave(uint64_t channel) noexcept override {
    try {
      write_file(left_name(channel, rank()), nullptr, 0);
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
  std::string path(const std::string& name) const { return cat(folder_, '/', name); }
  bool exists(const std::string& name) const { return access(path(name).c_str(), F_OK) == 0; }

  [[noreturn]] void throw_io(const char* what, const std::string& name) const {
    const int error = errno;
    throw Error(Status::kIo, cat("shared folder: ", path(name), " cannot be ", what, " (",
                                 errno_text(error), "); look at the file system"));
  }

  /// Whole or not at all. @param keep  where one of that name is there, that one stays.
  /// @return  whether this one is there now.
  bool write_file(const std::string& name, const void* data, int64_t bytes, bool keep = false) {
    std::string draft;
    {
      const std::lock_guard lock(mutex_);
      draft = cat("t.", rank(), '.', drafts_++);
    }
    const Socket file(open(path(draft).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) throw_io("created", draft);
    int64_t done = 0;
    while (done < bytes) {
      const ssize_t n = ::write(file.fd(), static_cast<const char*>(data) + done,
                                static_cast<size_t>(bytes - done));
      if (n < 0 && errno != EINTR) throw_io("written", draft);
      if (n > 0) done += n;
    }
    if (!keep) {
      if (rename(path(draft).c_str(), path(name).c_str()) != 0) throw_io("written", name);
      return true;
    }
    const bool first = link(path(draft).c_str(), path(name).c_str()) == 0;
    const int error = errno;
    unlink(path(draft).c_str());
    errno = error;
    if (!first && error != EEXIST) throw_io("written", name);
    return first;
  }

  /// False if there is none.
  bool read_file(const std::string& name, std::string& content) const {
    const Socket file(open(path(name).c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
      if (errno == ENOENT) return false;
      throw_io("opened", name);
    }
    struct stat about {};
    if (fstat(file.fd(), &about) != 0) throw_io("read", name);
    content.resize(static_cast<size_t>(about.st_size));
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = ::read(file.fd(), content.data() + done, content.size() - done);
      if (n == 0 || (n < 0 && errno != EINTR)) throw_io("read", name);
      if (n > 0) done += static_cast<size_t>(n);
    }
    return true;
  }

  // A lock that ends with its process, whatever ends that. A file system may have none, or show
  // each machine its own alone: trusted is the lock of a peer that was seen at the meeting.
  static std::string lock_name(int32_t of) { return cat("alive.", of); }
  void take_lock() {
    alive_ = Socket(open(path(lock_name(rank())).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    if (alive_) static_cast<void>(fcntl(alive_.fd(), F_OFD_SETLK, &whole));
  }
  bool has_lock(int32_t of) const {
    const Socket file(open(path(lock_name(of)).c_str(), O_RDWR | O_CLOEXEC));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    return file && fcntl(file.fd(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  }

  void remove_all() {
    std::vector<std::string> names;
    if (DIR* const folder = opendir(folder_.c_str())) {
      while (const dirent* entry = readdir(folder)) names.emplace_back(entry->d_name);
      closedir(folder);
    }
    for (const std::string& name : names) {
      if (name != "." && name != "..") unlink(path(name).c_str());
    }
    rmdir(folder_.c_str());
  }

  void receive_all(const FolderMeeting& meeting, Deadline deadline) {
    if (mkdir(folder_.c_str(), 0700) != 0) {
      MUONRT_REQUIRE(errno != EEXIST, Status::kInvalidState, "shared folder: ", folder_,
                     " is there already (an earlier run, or a second rank 0); give every run an id "
                     "of its own");
      throw Error(Status::kIo,
                  cat("shared folder: ", folder_, " cannot be made (", errno_text(errno),
                      "); pass a folder that exists and may be "
                      "written to"));
    }
    take_lock();
    std::vector<Card> cards(static_cast<size_t>(size()));
    cards[0] = {0, size(), meeting.version, 0, fresh_nonce()};
    std::string problem;
    Looks looks;
    while (true) {
      std::vector<int32_t> missing;
      for (int32_t r = 1; r < size(); ++r) {
        Card& card = cards[static_cast<size_t>(r)];
        std::string content;
        if (card.size == 0 && read_file(cat("card.", r), content) &&
            content.size() == sizeof card) {
          std::memcpy(&card, content.data(), sizeof card);
        }
        if (card.size == 0) missing.push_back(r);
        problem = problem.empty() && card.size ? wrong_with(card, meeting) : problem;
      }
      if (!problem.empty()) break;
      if (missing.empty()) break;
      MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "shared folder ", folder_, ": ",
                     name_ranks(missing), " of ", size(),
                     " did not come before the deadline; start all ranks with the same folder and "
                     "run id, or raise the timeout");
      looks.pause();
    }
    // A message of this very length cannot be taken for cards: the status comes first.
    std::string answer(sizeof(int32_t), '\0');
    const auto status = static_cast<int32_t>(problem.empty() ? Status::kOk : Status::kMismatch);
    std::memcpy(answer.data(), &status, sizeof status);
    answer.append(reinterpret_cast<const char*>(cards.data()), cards.size() * sizeof(Card));
    answer += problem;
    write_file("answer", answer.data(), static_cast<int64_t>(answer.size()));
    if (!problem.empty()) throw Error(Status::kMismatch, problem);
  }

  static std::string wrong_with(const Card& card, const FolderMeeting& meeting) {
    if (card.size != meeting.size) {
      return cat("shared folder: rank ", card.rank, " believes in ", card.size,
                 " ranks, rank 0 in ", meeting.size, "; start all with the same number");
    }
    if (card.version != meeting.version) {
      return cat("shared folder: rank ", card.rank, " runs version ", card.version,
                 " of muonrt, rank 0 ", meeting.version, "; use one version on all ranks");
    }
    return "";
  }

  void go_to_rank_0(const FolderMeeting& meeting, Deadline deadline) {
    Looks looks;
    while (access(folder_.c_str(), F_OK) != 0) {
      MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "shared folder: rank 0 did not make ",
                     folder_, " before the deadline; start it with the same folder and run id");
      looks.pause();
    }
    take_lock();
    const Card mine{rank(), size(), meeting.version, 0, fresh_nonce()};
    MUONRT_REQUIRE(write_file(cat("card.", rank()), &mine, sizeof mine, true),
                   Status::kInvalidState, "shared folder: ", folder_, " has a rank ", rank(),
                   " already (an earlier run, or two processes of that rank); give every run an id "
                   "and every rank a number of its own");
    std::string answer;
    for (; !read_file("answer", answer); looks.pause()) {
      MUONRT_REQUIRE(
          !deadline.passed(), Status::kTimeout, "shared folder ", folder_,
          ": rank 0 gave no answer before the deadline; look for a rank that is missing, "
          "or for a folder left by an earlier run");
    }
    check_answer(answer, mine);
  }

  void check_answer(const std::string& answer, const Card& mine) const {
    constexpr size_t kHead = sizeof(int32_t);
    const size_t own = kHead + static_cast<size_t>(rank()) * sizeof(Card);
    // Rank 0 may count fewer ranks than this one believes in: then the end says so.
    int32_t status = 0;
    MUONRT_REQUIRE(answer.size() > kHead, Status::kCorrupt, "shared folder: ", folder_,
                   "/answer is cut short; look at the file system");
    std::memcpy(&status, answer.data(), kHead);
    const bool listed = answer.size() >= own + sizeof(Card) &&
                        std::memcmp(answer.data() + own, &mine, sizeof mine) == 0;
    if (status != 0) {
      const size_t at = answer.find("shared folder:");
      throw Error(Status::kMismatch,
                  at == std::string::npos ? "shared folder: rank 0 refused" : answer.substr(at));
    }
    MUONRT_REQUIRE(listed, Status::kInvalidState, "shared folder: ", folder_,
                   " holds the answer of an earlier run; give every run an id of its own");
  }

  const std::string folder_;
  Socket alive_;               // the file of this rank's lock
  std::vector<bool> watched_;  // ranks whose lock can be seen
  std::mutex mutex_;
  Counts sent_, received_;
  int64_t drafts_ = 0;
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
  return std::make_shared<FolderPost>(m, Deadline::in_ms(timeout_ms));
}

}  // namespace muonrt
