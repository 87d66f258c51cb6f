"""The set search as tests call it: by loads and by sums of rounds."""

from downset.budget import Budget
from downset.pipelines.accounting import Accounting
from downset.pipelines.set_search import ExactRequest, search_by_loads, search_by_rounds


def by_loads(problem, cluster, accounting=None, *, forbidden=frozenset(), seconds=10.0):
    request = ExactRequest(problem, cluster, accounting or Accounting(), forbidden=forbidden)
    return search_by_loads(request, Budget(seconds).start())


def by_rounds(
    problem, cluster, comm="resources", *, max_latency_s=None, several=True, forbidden=frozenset(), seconds=10.0
):
    accounting = Accounting(comm, max_latency_s=max_latency_s)
    return search_by_rounds(ExactRequest(problem, cluster, accounting, several, forbidden), Budget(seconds).start())
