#include "comm/tcp/folder_rendezvous.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/backoff.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

namespace {

// Who may write to the folder may put links and pipes there.
constexpr int kOpen = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr int64_t kMaxBytes = 65536;  // of a note

/// What rank 0 leaves: this, then the name of its machine and its addresses, one a line.
struct AddressFileHeader {
  std::array<char, 8> magic;
  Nonce drawn;  // for this meeting
  Digest proof;
};
static_assert(sizeof(AddressFileHeader) == 72);
constexpr std::array<char, 8> kNote = {'m', 'u', 'o', 'n', 'r', 't', 'N', '1'};

std::string text_of(const Nonce& drawn) { return {drawn.begin(), drawn.end()}; }

Digest proof_of(const FolderRendezvous& rendezvous, const AddressFileHeader& head,
                const std::string& rest) {
  return keyed_digest(rendezvous.secret, {text_of(head.drawn), rendezvous.run_id, "\n", rest});
}

/// What the ranks of one meeting know and nobody else.
std::string common_secret(const FolderRendezvous& rendezvous, const Nonce& drawn) {
  const Digest out = keyed_digest(rendezvous.secret, {rendezvous.run_id, "\n", text_of(drawn)});
  return {out.begin(), out.end()};
}

std::string machine_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// The note's place. The folder stays open, so that it is the same whatever directory the process
/// changes to.
class AddressFile {
 public:
  explicit AddressFile(const FolderRendezvous& rendezvous)
      : name_(rendezvous.run_id),
        path_(rendezvous.path + '/' + name_),
        folder_([&] { return open(rendezvous.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }) {
    if (folder_) return;
    throw Error(Status::kIo,
                cat("shared folder: ", rendezvous.path, " cannot be opened (", errno_text(errno),
                    "); pass a folder that exists and may be written to"));
  }

  const std::string& path() const { return path_; }

  /// Whole or not at all. Errors: INVALID_STATE if there is a note already.
  void write(const std::string& content) const {
    std::string draft;
    Descriptor file = create_draft(draft);
    for (size_t done = 0; done < content.size();) {
      const ssize_t n = ::write(file.fd(), content.data() + done, content.size() - done);
      if (n < 0 && errno != EINTR) discard(draft, "written");
      if (n > 0) done += static_cast<size_t>(n);
    }
    // Other machines may see all of it once it is closed, and not before.
    if (close(file.release()) != 0) discard(draft, "written");
    // Unlike a rename, a link replaces nothing.
    const bool first = linkat(folder_.fd(), draft.c_str(), folder_.fd(), name_.c_str(), 0) == 0;
    if (!first && errno != EEXIST) discard(draft, "linked");
    unlinkat(folder_.fd(), draft.c_str(), 0);
    MUONRT_REQUIRE(first, Status::kInvalidState, "shared folder: ", path_,
                   " is there already (an earlier run, or a second rank 0); give every run an id "
                   "of its own, or remove what a run that was killed has left");
  }

  /// False if there is none yet.
  bool read(std::string& content, uid_t& owner) const {
    const Descriptor file([&] { return openat(folder_.fd(), name_.c_str(), O_RDONLY | kOpen); });
    if (!file && (errno == ENOENT || errno == ESTALE)) return false;
    MUONRT_REQUIRE(file || errno != EACCES, Status::kInvalidState, "shared folder: ", path_,
                   " may not be read by this user (rank 0 runs as another one?); run all ranks as "
                   "one user");
    if (!file) throw_io(path_, "opened");
    struct stat about {};
    if (fstat(file.fd(), &about) != 0) {
      if (errno == ESTALE) return false;
      throw_io(path_, "read");
    }
    MUONRT_REQUIRE(S_ISREG(about.st_mode) && about.st_size <= kMaxBytes, Status::kCorrupt,
                   "shared folder: ", path_, " is no file, or has ", about.st_size, " bytes (",
                   kMaxBytes, " at most); look who writes to the folder");
    owner = about.st_uid;
    content.resize(static_cast<size_t>(about.st_size));
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = ::read(file.fd(), content.data() + done, content.size() - done);
      if (n == 0) break;
      if (n < 0 && errno == ESTALE) return false;
      if (n < 0 && errno != EINTR) throw_io(path_, "read");
      if (n > 0) done += static_cast<size_t>(n);
    }
    content.resize(done);
    return true;
  }

  void remove() const noexcept { unlinkat(folder_.fd(), name_.c_str(), 0); }

  /// The owner of files that this process makes, which a file system may map to another user.
  uid_t my_user() const {
    std::string draft;
    const Descriptor file = create_draft(draft);
    struct stat about {};
    if (fstat(file.fd(), &about) != 0) discard(draft, "looked at");
    unlinkat(folder_.fd(), draft.c_str(), 0);
    return about.st_uid;
  }

 private:
  [[noreturn]] static void throw_io(const std::string& path, const char* what) {
    throw Error(Status::kIo, cat("shared folder: ", path, " cannot be ", what, " (",
                                 errno_text(errno), "); look at the file system"));
  }
  [[noreturn]] void discard(const std::string& draft, const char* what) const {
    const int error = errno;
    unlinkat(folder_.fd(), draft.c_str(), 0);
    errno = error;
    throw_io(path_, what);
  }

  Descriptor create_draft(std::string& draft) const {
    draft = cat('.', name_, '.');
    const Nonce drawn = fresh_nonce();
    for (size_t i = 0; i < 8; ++i) {
      draft += "0123456789abcdef"[drawn[i] >> 4];
      draft += "0123456789abcdef"[drawn[i] & 15];
    }
    Descriptor out([&] {
      return openat(folder_.fd(), draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | kOpen, 0600);
    });
    if (!out) throw_io(path_, "created");
    return out;
  }

  const std::string name_, path_;
  const Descriptor folder_;
};

/// Rank 0's note, there as long as this.
class PublishedAddress {
 public:
  PublishedAddress(const AddressFile& file, const std::string& content) : file_(file) {
    file.write(content);
  }
  ~PublishedAddress() { file_.remove(); }
  PublishedAddress(const PublishedAddress&) = delete;
  PublishedAddress& operator=(const PublishedAddress&) = delete;

 private:
  const AddressFile& file_;
};

TcpRendezvous over_tcp(const FolderRendezvous& m, const AddressFile& file) {
  return {m.rank, m.size, file.path(), "", "", m.version};
}

std::vector<Socket> receive_all(const FolderRendezvous& rendezvous, const AddressFile& file,
                                Deadline deadline) {
  std::vector<Socket> listeners;
  AddressFileHeader head{kNote, fresh_nonce(), {}};
  TcpRendezvous tcp;
  const PublishedAddress note = retry_while_out_of_memory(deadline, [&] {
    listeners = listen_at(local_addresses(), std::max(64, rendezvous.size));
    std::string rest = machine_name() + '\n';
    for (const Socket& door : listeners) rest += address_of(door).text() + '\n';
    head.proof = proof_of(rendezvous, head, rest);
    tcp = over_tcp(rendezvous, file);
    tcp.secret = common_secret(rendezvous, head.drawn);
    return PublishedAddress(file,
                            std::string(reinterpret_cast<const char*>(&head), sizeof head) + rest);
  });
  return accept_all_ranks(tcp, std::move(listeners), deadline);
}

RankZeroContact lead_of(const FolderRendezvous& rendezvous, const AddressFile& file,
                        const std::string& note) {
  AddressFileHeader head{};
  if (note.size() >= sizeof head) std::memcpy(&head, note.data(), sizeof head);
  MUONRT_REQUIRE(head.magic == kNote, Status::kCorrupt, "shared folder: ", file.path(),
                 " is no file of rank 0; look who writes to the folder, and use one version of "
                 "muonrt on all ranks");
  const std::string rest = note.substr(sizeof head);
  MUONRT_REQUIRE(equal_in_constant_time(head.proof, proof_of(rendezvous, head, rest)),
                 Status::kComm, "shared folder: rank 0 and rank ", rendezvous.rank,
                 " have different secrets, or one has none, or ", file.path(),
                 " is an earlier run's; give all ranks the same, and every run an id of its own");
  // The name of rank 0's machine, then its addresses: a line each.
  std::string why;
  size_t at = rest.find('\n');
  const bool here = rest.substr(0, at) == machine_name();
  RankZeroContact out{{}, common_secret(rendezvous, head.drawn)};
  while (at < rest.size()) {
    const size_t end = std::min(rest.find('\n', ++at), rest.size());
    if (end == at) break;
    for (const SocketAddress& address : look_up(rest.substr(at, end - at), why)) {
      if (here || !address.is_loopback()) out.addresses.push_back(address);
    }
    at = end;
  }
  return out;
}

std::vector<Socket> go_to_rank_0(const FolderRendezvous& rendezvous, const AddressFile& file,
                                 Deadline deadline) {
  const uid_t user = rendezvous.secret.empty()
                         ? retry_while_out_of_memory(deadline, [&] { return file.my_user(); })
                         : 0;
  const TcpRendezvous tcp =
      retry_while_out_of_memory(deadline, [&] { return over_tcp(rendezvous, file); });
  bool seen = false;
  const auto search = [&](std::string& why) -> RankZeroContact {
    std::string note;
    uid_t owner = user;
    if (!file.read(note, owner)) {
      why = "rank 0 has not made that file";
      return {};
    }
    seen = true;
    MUONRT_REQUIRE(!rendezvous.secret.empty() || owner == user, Status::kInvalidState,
                   "shared folder: ", file.path(), " belongs to user ", owner,
                   " (this process's files to user ", user,
                   "), who could pose as rank 0; run all ranks as one user");
    why = "it names no address that is reached from here";
    return lead_of(rendezvous, file, note);
  };
  // Before rank 0 lets this rank in.
  auto out = retry_while_out_of_memory(deadline, [] { return std::vector<Socket>(1); });
  try {
    out[0] = connect_to_rank_0(tcp, search, deadline);
  } catch (const Error& error) {
    if (error.status() != Status::kTimeout || !seen) throw;
    throw error.with_context("", ", or remove that file where an earlier run has left it");
  }
  return out;
}

void check(const FolderRendezvous& m) {
  check_rank(m.rank, m.size);
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
}

}  // namespace

std::vector<Socket> rendezvous_in_folder(const FolderRendezvous& rendezvous, Deadline deadline) {
  check(rendezvous);
  const AddressFile file =
      retry_while_out_of_memory(deadline, [&] { return AddressFile(rendezvous); });
  return rendezvous.rank == 0 ? receive_all(rendezvous, file, deadline)
                              : go_to_rank_0(rendezvous, file, deadline);
}

}  // namespace muonrt
