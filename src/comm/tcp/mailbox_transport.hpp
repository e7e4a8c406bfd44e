#pragma once

#include <memory>

#include "comm/tcp/mailbox.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// A transport over a post. Collectives go by rank 0. Duplicates share the post, each with a
/// channel of its own.
std::unique_ptr<Transport> make_mailbox_transport(std::shared_ptr<Mailbox> mailbox);

}  // namespace muonrt
