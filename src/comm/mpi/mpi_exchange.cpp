#include <algorithm>
#include <exception>

#include "base/text.hpp"
#include "comm/mpi/mpi_check.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace muonrt::mpi {

namespace {

constexpr int kDataTag = 0, kOverTag = 2;
// How long a failed exchange waits for receives that have begun and cannot be called back, and for
// peers to say that theirs are over: on a busy machine a message may be on its way for seconds.
constexpr int64_t kGraceMs = 5000, kGoodbyeMs = 6000;

std::string ranks_text(std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return cat(ranks.size() == 1 ? "rank" : "ranks", " ", ranks);
}

}  // namespace

/// A message travels in pieces of `piece_bytes`; MPI keeps the order of a pair's pieces.
void Communicator::start(const muonrt_message_t& message, bool send) {
  for (int64_t begin = 0; begin < message.bytes; begin += piece_bytes_) {
    const int64_t bytes = std::min(piece_bytes_, message.bytes - begin);
    char* const data = static_cast<char*>(message.data) + begin;
    const int count = static_cast<int>(bytes);
    pieces_.push_back({message.peer, send, false, bytes});
    requests_.push_back(MPI_REQUEST_NULL);
    MPI_Request* const request = &requests_.back();
    if (send) {
      MUONRT_MPI(MPI_Isend(data, count, MPI_BYTE, message.peer, kDataTag, comm_, request));
    } else {
      MUONRT_MPI(MPI_Irecv(data, count, MPI_BYTE, message.peer, kDataTag, comm_, request));
    }
    ++open_;
  }
}

void Communicator::check_piece(const Fragment& piece, const MPI_Status& status) const {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(status.MPI_ERROR, &error_class);
  MUONRT_REQUIRE(error_class != MPI_ERR_TRUNCATE, Status::kMismatch, "rank ", piece.peer,
                 " sends more than the ", piece.bytes, " bytes that rank ", rank_,
                 " expects; both must derive the sizes from the same plan");
  MUONRT_REQUIRE(error_class == MPI_SUCCESS, Status::kComm, piece.send ? "send to" : "receive from",
                 " rank ", piece.peer, " failed: ", error_text(status.MPI_ERROR));
  if (piece.send) return;
  int count = 0;
  MUONRT_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
  MUONRT_REQUIRE(count == piece.bytes, Status::kMismatch, "rank ", piece.peer, " sends ", count,
                 " bytes, rank ", rank_, " expects ", piece.bytes,
                 "; both must derive the sizes from the same plan");
}

/// True if any piece has completed since the last call.
bool Communicator::test_pieces() {
  int n = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &n,
                                completed_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) MUONRT_MPI(code);
  if (n == MPI_UNDEFINED || n == 0) return false;
  open_ -= n;
  for (int i = 0; i < n; ++i) {
    MPI_Status& status = statuses_[static_cast<size_t>(i)];
    if (code != MPI_ERR_IN_STATUS) status.MPI_ERROR = MPI_SUCCESS;
    check_piece(pieces_[static_cast<size_t>(completed_[static_cast<size_t>(i)])], status);
  }
  return true;
}

void Communicator::throw_timeout() const {
  throw error_with_message(Status::kTimeout, [&] {
    std::vector<int32_t> silent, not_taking;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL)
        (pieces_[i].send ? not_taking : silent).push_back(pieces_[i].peer);
    }
    std::string who;
    if (!silent.empty()) who = cat("no message from ", ranks_text(std::move(silent)));
    if (!not_taking.empty()) {
      who += cat(who.empty() ? "" : ", ", ranks_text(std::move(not_taking)),
                 " did not take what was sent");
    }
    return cat("not complete at its deadline: ", who,
               "; see what those ranks do, or set a longer timeout");
  });
}

void Communicator::exchange(std::span<const muonrt_message_t> sends,
                            std::span<const muonrt_message_t> receives, Deadline deadline) {
  int64_t sent = 0, received = 0;
  for (const auto& m : sends) sent += (m.bytes + piece_bytes_ - 1) / piece_bytes_;
  for (const auto& m : receives) received += (m.bytes + piece_bytes_ - 1) / piece_bytes_;
  run("exchange", size_ + received, [&] {
    const int64_t pieces = sent + received;
    pieces_.clear();
    requests_.clear();
    open_ = 0;
    requests_.reserve(static_cast<size_t>(pieces));
    pieces_.reserve(static_cast<size_t>(pieces));
    statuses_.resize(std::max(statuses_.size(), static_cast<size_t>(pieces)));
    completed_.resize(std::max(completed_.size(), static_cast<size_t>(pieces)));
    for (const auto& m : receives) start(m, false);
    for (const auto& m : sends) start(m, true);
    Backoff pauses = backoff();
    while (open_ > 0) {
      if (test_pieces()) {
        pauses.reset();
        continue;
      }
      box_->throw_if_failed();
      if (deadline.passed()) throw_timeout();
      pauses.pause();
    }
  });
}

void Communicator::fail(const char* operation) {
  Error failed(Status::kInternal, "unknown exception");
  try {
    throw;
  } catch (const Error& error) {
    failed = error;
  } catch (const std::exception& error) {
    failed = Error(Status::kInternal, error.what());
  } catch (...) {
  }
  publish(failed.with_context(cat(operation, " of rank ", rank_, " (mpi): ")));
  give_up();
  throw failed;
}

bool Communicator::active(size_t i) const { return requests_[i] != MPI_REQUEST_NULL; }

bool Communicator::any_active(bool send) const {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i) && pieces_[i].send == send && !pieces_[i].over) return true;
  return false;
}

bool Communicator::receives_from(int32_t peer) const {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i) && !pieces_[i].send && pieces_[i].peer == peer) return true;
  return false;
}

/// To those that may send to this rank: its receives from them are over, and no more will come. A
/// message without bytes is gone as soon as it is sent.
void Communicator::notify_senders() const noexcept {
  for (const Fragment& piece : pieces_) {
    if (piece.send || receives_from(piece.peer)) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, piece.peer, kOverTag, comm_, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

/// Nobody will touch the sends to those that have told this rank so.
void Communicator::poll_receivers() noexcept {
  while (true) {
    int arrived = 0;
    MPI_Status status;
    const int probed = MPI_Iprobe(MPI_ANY_SOURCE, kOverTag, comm_, &arrived, &status);
    if (probed != MPI_SUCCESS || !arrived) return;
    const int peer = status.MPI_SOURCE;
    if (MPI_Recv(nullptr, 0, MPI_BYTE, peer, kOverTag, comm_, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return;
    for (Fragment& piece : pieces_)
      if (piece.send && piece.peer == peer) piece.over = true;
  }
}

/// Ends what is pending so that the caller's buffers are left alone. Receives are called back;
/// those that have begun get a moment to finish. A send cannot be called back, and its receiver may
/// be in the middle of it: it goes on until that has said that it wants no more. Who says nothing
/// has not begun to receive, and will find the posted error before it does, or is gone.
void Communicator::give_up() noexcept {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i) && !pieces_[i].send) MPI_Cancel(&requests_[i]);
  const Deadline grace = Deadline::in_ms(kGraceMs), goodbye_frame = Deadline::in_ms(kGoodbyeMs);
  bool told = false;
  Backoff pauses = backoff();
  while (true) {
    for (MPI_Request& request : requests_) {
      int done = 0;
      if (request != MPI_REQUEST_NULL) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    poll_receivers();
    if (!told && (!any_active(/*send=*/false) || grace.passed())) {
      notify_senders();
      told = true;
    }
    if (told && (!any_active(/*send=*/true) || goodbye_frame.passed())) break;
    pauses.pause();
  }
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i)) abandoned_ = true;
}

}  // namespace muonrt::mpi
