// A queue that serves clients in turn, and the tenants of each client in turn, so that a client that offers much waits
// behind itself only. A tenant is a name that its client gives; inventing names wins nothing from other clients.
// Thread-compatible.
#ifndef BERTH_SERVER_REQUEST_FAIR_QUEUE_H_
#define BERTH_SERVER_REQUEST_FAIR_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace berth {

// Who takes turns.
struct Caller {
  std::string client;  // who takes turns with others: the address, or the tenant of a credential
  std::string tenant;  // a name that the client gives, or ""
};

// What each client has in a pool of threads, and may have: all threads but one at most, and half of what waits. A piece
// of work always fits where nothing waits. Thread-compatible.
class ClientShares {
 public:
  struct Share {
    int64_t waiting = 0;
    int64_t waiting_bytes = 0;
    int64_t running = 0;
  };
  struct Limits {
    int64_t threads = 0;
    int64_t waiting = 0;  // pieces of work, of all clients
    int64_t waiting_bytes = 0;
  };
  // A limit, and what a piece of work would make of it.
  struct Excess {
    int64_t limit = 0;
    int64_t value = 0;
  };

  explicit ClientShares(const Limits& limits) : limits_(limits) {}
  bool MayRun(const std::string& client) const {
    return Of(client).running < std::max<int64_t>(1, limits_.threads - 1);
  }
  // The limit that one more piece of work of the client would exceed; none: it fits.
  std::optional<Excess> ExcessOf(const std::string& client, int64_t bytes) const {
    const Share own = Of(client);
    const auto excess = [](int64_t used, int64_t more, int64_t limit) -> std::optional<Excess> {
      if (used == 0 || used + more <= limit) return std::nullopt;
      return Excess{limit, used + more};
    };
    if (const auto found = excess(own.waiting, 1, limits_.waiting / 2)) return found;
    if (const auto found = excess(all_.waiting, 1, limits_.waiting)) return found;
    if (const auto found = excess(own.waiting_bytes, bytes, limits_.waiting_bytes / 2)) return found;
    return excess(all_.waiting_bytes, bytes, limits_.waiting_bytes);
  }
  void Add(const std::string& client, const Share& change) {
    const auto share = shares_.try_emplace(client).first;
    Add(change, &share->second);
    Add(change, &all_);
    if (share->second.waiting == 0 && share->second.running == 0) shares_.erase(share);
  }
  // The sum over all clients.
  const Share& all() const { return all_; }

 private:
  Share Of(const std::string& client) const {
    const auto found = shares_.find(client);
    return found == shares_.end() ? Share() : found->second;
  }
  static void Add(const Share& change, Share* share) {
    share->waiting += change.waiting;
    share->waiting_bytes += change.waiting_bytes;
    share->running += change.running;
  }

  const Limits limits_;
  std::map<std::string, Share> shares_;  // of the clients that have something
  Share all_;
};

// Lists of T by name. Next() serves the names in turn.
template <typename T>
class TurnList {
 public:
  T& operator[](const std::string& name) {
    const auto [it, added] = lists_.try_emplace(name);
    if (added) turns_.push_back(name);
    return it->second;
  }
  // Calls `take` with the lists in turn until it returns true; that list goes to the end. Drops lists that are empty
  // afterwards. Returns whether one was taken.
  bool Next(const std::function<bool(const std::string& name, T* list)>& take) {
    for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
      const auto list = lists_.find(*turn);
      if (!take(*turn, &list->second)) continue;
      turns_.splice(turns_.end(), turns_, turn);
      if (list->second.empty()) Drop(list);
      return true;
    }
    return false;
  }
  // Calls `remove` with each list until it returns true, and drops that list if it is empty.
  bool Remove(const std::function<bool(T* list)>& remove) {
    for (auto list = lists_.begin(); list != lists_.end(); ++list) {
      if (!remove(&list->second)) continue;
      if (list->second.empty()) Drop(list);
      return true;
    }
    return false;
  }
  bool empty() const { return lists_.empty(); }

 private:
  void Drop(typename std::map<std::string, T>::iterator list) {
    turns_.remove(list->first);
    lists_.erase(list);
  }

  std::map<std::string, T> lists_;
  std::list<std::string> turns_;  // the next one first
};

// T has the fields `key`, `client` and `tenant`.
template <typename T>
class FairQueue {
 public:
  void Push(T item) {
    const auto [client, tenant] = std::pair(item.client, item.tenant);
    clients_[client][tenant].push_back(std::move(item));
    ++size_;
  }
  // The next item of a client that `may_run`; none if there is none.
  std::optional<T> Pop(const std::function<bool(const std::string& client)>& may_run) {
    std::optional<T> item;
    clients_.Next([&](const std::string& client, TurnList<std::deque<T>>* tenants) {
      return may_run(client) && tenants->Next([&](const std::string&, std::deque<T>* items) {
        item = std::move(items->front());
        items->pop_front();
        return true;
      });
    });
    if (item.has_value()) --size_;
    return item;
  }
  // Takes out the item with this key, or none.
  std::optional<T> Remove(uint64_t key) {
    std::optional<T> item;
    clients_.Remove([&](TurnList<std::deque<T>>* tenants) {
      return tenants->Remove([&](std::deque<T>* items) {
        for (auto it = items->begin(); it != items->end(); ++it) {
          if (static_cast<uint64_t>(it->key) != key) continue;
          item = std::move(*it);
          items->erase(it);
          return true;
        }
        return false;
      });
    });
    if (item.has_value()) --size_;
    return item;
  }
  int64_t size() const { return size_; }

 private:
  TurnList<TurnList<std::deque<T>>> clients_;
  int64_t size_ = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_FAIR_QUEUE_H_
