#include <algorithm>
#include <exception>

#include "base/text.hpp"
#include "comm/mpi/mpi_check.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace muonrt::mpi {

namespace {

constexpr int kDataTag = 0, kReceivesEndedTag = 2;
// Time limits after an error. An exchange waits for receives that have started, because they cannot
// be cancelled, and for the peers' notices that their receives are complete or cancelled. On a busy
// machine, a message may be in transit for seconds.
constexpr int64_t kReceiveGraceMs = 5000, kGoodbyeMs = 6000;

std::string ranks_text(std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return cat(ranks.size() == 1 ? "rank" : "ranks", " ", ranks);
}

}  // namespace

// A message is sent in fragments of at most `fragment_bytes_`. MPI preserves the order of the
// fragments between two ranks.
void Communicator::start_send(const muonrt_send_t& message) {
  for (int64_t begin = 0; begin < message.bytes; begin += fragment_bytes_) {
    const int64_t bytes = std::min(fragment_bytes_, message.bytes - begin);
    fragments_.push_back({message.peer, true, false, bytes});
    requests_.push_back(MPI_REQUEST_NULL);
    MUONRT_MPI(MPI_Isend(static_cast<const char*>(message.data) + begin, static_cast<int>(bytes),
                         MPI_BYTE, message.peer, kDataTag, comm_, &requests_.back()));
    ++open_;
  }
}

void Communicator::start_receive(const muonrt_receive_t& message) {
  for (int64_t begin = 0; begin < message.bytes; begin += fragment_bytes_) {
    const int64_t bytes = std::min(fragment_bytes_, message.bytes - begin);
    fragments_.push_back({message.peer, false, false, bytes});
    requests_.push_back(MPI_REQUEST_NULL);
    MUONRT_MPI(MPI_Irecv(static_cast<char*>(message.data) + begin, static_cast<int>(bytes),
                         MPI_BYTE, message.peer, kDataTag, comm_, &requests_.back()));
    ++open_;
  }
}

void Communicator::check_fragment(const Fragment& fragment, const MPI_Status& status) const {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(status.MPI_ERROR, &error_class);
  MUONRT_REQUIRE(error_class != MPI_ERR_TRUNCATE, Status::kMismatch, "rank ", fragment.peer,
                 " sent more than the ", fragment.bytes,
                 " bytes that this rank expected; pass the same size on both ranks");
  MUONRT_REQUIRE(error_class == MPI_SUCCESS, Status::kComm,
                 fragment.send ? "the send to" : "the receive from", " rank ", fragment.peer,
                 " failed: ", error_text(status.MPI_ERROR));
  if (fragment.send) return;
  int count = 0;
  MUONRT_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
  MUONRT_REQUIRE(count == fragment.bytes, Status::kMismatch, "rank ", fragment.peer, " sent ",
                 count, " bytes, but this rank expected ", fragment.bytes,
                 "; pass the same size on both ranks");
}

/// Returns whether a fragment has completed since the last call.
bool Communicator::test_fragments() {
  int n = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &n,
                                completed_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) MUONRT_MPI(code);
  if (n == MPI_UNDEFINED || n == 0) return false;
  open_ -= n;
  for (int i = 0; i < n; ++i) {
    MPI_Status& status = statuses_[static_cast<size_t>(i)];
    if (code != MPI_ERR_IN_STATUS) status.MPI_ERROR = MPI_SUCCESS;
    check_fragment(fragments_[static_cast<size_t>(completed_[static_cast<size_t>(i)])], status);
  }
  return true;
}

void Communicator::throw_timeout() const {
  throw error_with_message(Status::kTimeout, [&] {
    std::vector<int32_t> silent, not_taking;
    for (size_t i = 0; i < fragments_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL)
        (fragments_[i].send ? not_taking : silent).push_back(fragments_[i].peer);
    }
    std::string who;
    if (!silent.empty()) who = cat("received no message from ", ranks_text(std::move(silent)));
    if (!not_taking.empty()) {
      who += cat(who.empty() ? "" : ", and ", ranks_text(std::move(not_taking)),
                 " did not receive a message of this rank");
    }
    return cat(who,
               " before the timeout; check whether these ranks are still running, or raise the "
               "timeout (timeout_ms of the optimizer, or muonrt_comm_set_timeout())");
  });
}

void Communicator::exchange(std::span<const muonrt_send_t> sends,
                            std::span<const muonrt_receive_t> receives, Deadline deadline) {
  int64_t sent = 0, received = 0;
  for (const auto& m : sends) sent += (m.bytes + fragment_bytes_ - 1) / fragment_bytes_;
  for (const auto& m : receives) received += (m.bytes + fragment_bytes_ - 1) / fragment_bytes_;
  run("exchange", size_ + received, [&] {
    const int64_t fragments = sent + received;
    fragments_.clear();
    requests_.clear();
    open_ = 0;
    requests_.reserve(static_cast<size_t>(fragments));
    fragments_.reserve(static_cast<size_t>(fragments));
    statuses_.resize(std::max(statuses_.size(), static_cast<size_t>(fragments)));
    completed_.resize(std::max(completed_.size(), static_cast<size_t>(fragments)));
    for (const auto& m : receives) start_receive(m);
    for (const auto& m : sends) start_send(m);
    Backoff pauses = backoff();
    while (open_ > 0) {
      if (test_fragments()) {
        pauses.reset();
        continue;
      }
      error_channel_->throw_if_failed();
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
  publish(failed.with_context(cat(operation, " on rank ", rank_, " (mpi): ")));
  give_up();
  throw failed;
}

bool Communicator::active(size_t i) const { return requests_[i] != MPI_REQUEST_NULL; }

bool Communicator::any_active(bool send) const {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i) && fragments_[i].send == send && !fragments_[i].ended) return true;
  return false;
}

bool Communicator::receives_from(int32_t peer) const {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i) && !fragments_[i].send && fragments_[i].peer == peer) return true;
  return false;
}

/// Notifies each peer that sends to this rank that this rank's receives from the peer have ended.
/// The notice has no data, so its request can be freed immediately.
void Communicator::notify_senders() const noexcept {
  for (const Fragment& fragment : fragments_) {
    if (fragment.send || receives_from(fragment.peer)) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, fragment.peer, kReceivesEndedTag, comm_, &request) ==
        MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

/// Marks a send as ended if its receiver has sent a notice, because this receiver no longer reads
/// the buffer of the send.
void Communicator::poll_receivers() noexcept {
  while (true) {
    int arrived = 0;
    MPI_Status status;
    const int probed = MPI_Iprobe(MPI_ANY_SOURCE, kReceivesEndedTag, comm_, &arrived, &status);
    if (probed != MPI_SUCCESS || !arrived) return;
    const int peer = status.MPI_SOURCE;
    if (MPI_Recv(nullptr, 0, MPI_BYTE, peer, kReceivesEndedTag, comm_, MPI_STATUS_IGNORE) !=
        MPI_SUCCESS)
      return;
    for (Fragment& fragment : fragments_)
      if (fragment.send && fragment.peer == peer) fragment.ended = true;
  }
}

/// Ends the pending fragments, so that MPI no longer accesses the caller's buffers:
/// * Receives are cancelled. One that has already started may complete within kReceiveGraceMs.
/// * Sends cannot be cancelled, and the receiver may be reading the buffer, so this function waits
///   up to kGoodbyeMs for the receiver's notice. If there is no notice, either the receiver is no
///   longer reachable, or it has not started to receive and will receive the published error first.
void Communicator::give_up() noexcept {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i) && !fragments_[i].send) MPI_Cancel(&requests_[i]);
  const Deadline grace = Deadline::in_ms(kReceiveGraceMs), goodbye = Deadline::in_ms(kGoodbyeMs);
  bool notified = false;
  Backoff pauses = backoff();
  while (true) {
    for (MPI_Request& request : requests_) {
      int done = 0;
      if (request != MPI_REQUEST_NULL) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    poll_receivers();
    if (!notified && (!any_active(/*send=*/false) || grace.passed())) {
      notify_senders();
      notified = true;
    }
    if (notified && (!any_active(/*send=*/true) || goodbye.passed())) break;
    pauses.pause();
  }
  for (size_t i = 0; i < requests_.size(); ++i)
    if (active(i)) abandoned_ = true;
}

}  // namespace muonrt::mpi
