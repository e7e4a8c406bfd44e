#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/backoff.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

namespace {

// Other users who can write to the folder could place links or pipes in it. The flags therefore
// prevent following links and waiting for pipes.
constexpr int kOpen = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr int64_t kMaxBytes = 65536;  // maximum size of the file

/// The beginning of the file. The addresses of rank 0 follow.
struct AddressFileHeader {
  Magic magic = {'m', 'u', 'o', 'n', 'r', 't', 'N', '3'};
  Nonce run{};  // different for every rendezvous
  Digest proof{};
};
static_assert(sizeof(AddressFileHeader) == 72);

Digest proof_of(const Rendezvous& rendezvous, const AddressFileHeader& head,
                std::string_view addresses) {
  return keyed_digest(rendezvous.secret, {bytes_of(head, offsetof(AddressFileHeader, proof)),
                                          rendezvous.run_id, "\n", addresses});
}

/// Returns the secret of one rendezvous, which is known only to its ranks.
std::string common_secret(const Rendezvous& rendezvous, const Nonce& run) {
  const Digest out = keyed_digest(rendezvous.secret, {rendezvous.run_id, "\n", bytes_of(run)});
  return {out.begin(), out.end()};
}

/// The file with the addresses of rank 0. The folder stays open, so a relative path still refers to
/// the same folder after the process changes its working directory.
class AddressFile {
 public:
  explicit AddressFile(const Rendezvous& rendezvous)
      : name_(rendezvous.run_id), path_(rendezvous.address + '/' + name_), folder_([&] {
          return open(rendezvous.address.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }) {
    if (folder_) return;
    throw Error(Status::kIo,
                cat("shared folder: ", rendezvous.address, " cannot be opened (", errno_text(errno),
                    "); pass an existing folder with write permission"));
  }
  /// Removes the file if this object has written it.
  ~AddressFile() {
    if (written_) unlinkat(folder_.fd(), name_.c_str(), 0);
  }

  const std::string& path() const { return path_; }

  /// Creates the file with all its content. Errors: INVALID_STATE if the file already exists.
  void write(const std::string& content) {
    Draft draft(*this);
    for (size_t done = 0; done < content.size();) {
      const ssize_t n = ::write(draft.file.fd(), content.data() + done, content.size() - done);
      require_io(n >= 0 || errno == EINTR, "written");
      if (n > 0) done += static_cast<size_t>(n);
    }
    // Other machines may see the complete content only after the file is closed.
    require_io(close(draft.file.release()) == 0, "written");
    // Unlike rename(), link() does not replace an existing file.
    written_ = linkat(folder_.fd(), draft.name.c_str(), folder_.fd(), name_.c_str(), 0) == 0;
    require_io(written_ || errno == EEXIST, "linked");
    MUONRT_REQUIRE(written_, Status::kInvalidState, "shared folder: the file ", path_,
                   " already exists, from an earlier run or a second rank 0; use a new run_id for "
                   "every run, or delete the file if its run was killed");
  }

  /// Reads the file. Returns false if it does not exist yet.
  bool read(std::string& content, uid_t& owner) const {
    const Descriptor file([&] { return openat(folder_.fd(), name_.c_str(), O_RDONLY | kOpen); });
    if (!file && (errno == ENOENT || errno == ESTALE)) return false;
    MUONRT_REQUIRE(file || errno != EACCES, Status::kInvalidState,
                   "shared folder: this user may not read ", path_,
                   ", perhaps because rank 0 runs as another user; run all ranks as one user");
    require_io(bool(file), "opened");
    struct stat about {};
    const bool known = fstat(file.fd(), &about) == 0;
    if (!known && errno == ESTALE) return false;
    require_io(known, "read");
    MUONRT_REQUIRE(S_ISREG(about.st_mode) && about.st_size <= kMaxBytes, Status::kCorrupt,
                   "shared folder: ", path_, " is not a regular file, or has ", about.st_size,
                   " bytes instead of at most ", kMaxBytes,
                   "; check which programs write to the folder");
    owner = about.st_uid;
    content.resize(static_cast<size_t>(about.st_size));
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = ::read(file.fd(), content.data() + done, content.size() - done);
      if (n == 0) break;
      if (n < 0 && errno == ESTALE) return false;
      require_io(n > 0 || errno == EINTR, "read");
      if (n > 0) done += static_cast<size_t>(n);
    }
    content.resize(done);
    return true;
  }

  /// Returns the owner of files that this process creates in the folder. A file system may map this
  /// process's user to another user.
  uid_t my_user() const {
    const Draft draft(*this);
    struct stat about {};
    require_io(fstat(draft.file.fd(), &about) == 0, "examined");
    return about.st_uid;
  }

 private:
  /// A new file in the folder with a random name. The destructor removes this name.
  struct Draft {
    explicit Draft(const AddressFile& of) : folder(of.folder_.fd()) {
      uint64_t number = 0;
      std::memcpy(&number, fresh_nonce().data(), sizeof number);
      name = cat('.', of.name_, '.', number);
      file = Descriptor(
          [&] { return openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | kOpen, 0600); });
      of.require_io(bool(file), "created");
    }
    ~Draft() { unlinkat(folder, name.c_str(), 0); }
    const int folder;
    std::string name;
    Descriptor file;
  };

  void require_io(bool good, const char* what) const {
    if (good) return;
    throw Error(Status::kIo, cat("shared folder: ", path_, " cannot be ", what, " (",
                                 errno_text(errno), "); check the file system"));
  }

  const std::string name_, path_;
  const Descriptor folder_;
  bool written_ = false;
};

TcpConnections accept_through_folder(const Rendezvous& rendezvous, Rendezvous& tcp,
                                     AddressFile& file, Deadline deadline) {
  std::vector<Socket> listeners;
  AddressFileHeader head{.run = fresh_nonce()};
  retry_while_out_of_memory(deadline, [&] {
    const auto addresses = local_addresses();
    MUONRT_REQUIRE(!addresses.empty(), Status::kComm,
                   "shared folder: rank 0's machine has no network address, not even the loopback "
                   "address; configure one (ip link set lo up)");
    listeners = listen_at(addresses, rendezvous.ports);
    std::string bound;
    for (const Socket& listener : listeners) bound += bytes_of(address_of(listener));
    head.proof = proof_of(rendezvous, head, bound);
    tcp.secret = common_secret(rendezvous, head.run);
    file.write(std::string(bytes_of(head)) + bound);
  });
  return accept_all_ranks(tcp, std::move(listeners), deadline);
}

TcpConnections connect_through_folder(const Rendezvous& rendezvous, Rendezvous& tcp,
                                      const AddressFile& file, Deadline deadline) {
  const bool open = rendezvous.secret.empty();
  const uid_t user = open ? retry_while_out_of_memory(deadline, [&] { return file.my_user(); }) : 0;
  bool seen = false;
  const auto search = [&](std::string& why) -> Addresses {
    std::string content;
    uid_t owner = user;
    if (!file.read(content, owner)) {
      why = "rank 0 has not created the file";
      return {};
    }
    seen = true;
    MUONRT_REQUIRE(!open || owner == user, Status::kInvalidState, "shared folder: ", file.path(),
                   " belongs to user ", owner, ", but this process creates files of user ", user,
                   "; run all ranks as one user, or pass a secret");
    AddressFileHeader head{.magic = {}};
    if (content.size() >= sizeof head) std::memcpy(&head, content.data(), sizeof head);
    MUONRT_REQUIRE(
        head.magic == AddressFileHeader().magic, Status::kCorrupt, "shared folder: ", file.path(),
        " was not written by rank 0 of this version of muonrt; check which programs write "
        "to the folder, and use the same version of muonrt on all ranks");
    const std::string_view bound = std::string_view(content).substr(sizeof head);
    MUONRT_REQUIRE(
        equal_in_constant_time(head.proof, proof_of(rendezvous, head, bound)), Status::kComm,
        "shared folder: rank 0 and rank ", rendezvous.rank,
        " have different secrets, or one has none, or ", file.path(),
        " is from an earlier run; pass the same secret on all ranks, and use a new run_id for "
        "every run");
    tcp.secret = common_secret(rendezvous, head.run);
    Addresses out(bound.size() / sizeof(SocketAddress));
    std::memcpy(out.data(), bound.data(), out.size() * sizeof out[0]);
    return out;
  };
  try {
    return connect_to_rank_0(tcp, search, deadline);
  } catch (const Error& error) {
    if (error.status() != Status::kTimeout || !seen) throw;
    throw error.with_context("", ", or delete that file if it is from an earlier run");
  }
}

}  // namespace

TcpConnections rendezvous_in_folder(const Rendezvous& rendezvous, Deadline deadline) {
  const std::string& id = rendezvous.run_id;
  const bool good = id.find_first_not_of(
                        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                        "0123456789.-_") == std::string::npos;
  MUONRT_REQUIRE(good && !id.empty() && id.size() <= 64 && id != "." && id != "..",
                 Status::kInvalidArgument, "shared folder: run_id is '", id,
                 "', but must be 1 to 64 letters, digits, '.', '-' and '_'; use a new run_id for "
                 "every run");
  MUONRT_REQUIRE(!rendezvous.address.empty(), Status::kInvalidArgument,
                 "shared folder: path is empty; pass a folder that all ranks can access");
  check_rendezvous(rendezvous, "shared folder");
  Rendezvous tcp;  // the same, but its address, which is only used in messages, is the file
  AddressFile file = retry_while_out_of_memory(deadline, [&] {
    tcp = rendezvous;
    tcp.address += '/' + id;
    return AddressFile(rendezvous);
  });
  return rendezvous.rank == 0 ? accept_through_folder(rendezvous, tcp, file, deadline)
                              : connect_through_folder(rendezvous, tcp, file, deadline);
}

}  // namespace muonrt
