"""The tables of ClickHouse's public examples, and a few that are like tables of many: columns, types and clauses, facts alone.

Taken from the documentation's pages "Example datasets" (hits, trips, github_events, uk_price_paid, wikistat, cell_towers,
opensky) and, for the 105 columns of hits, from ClickBench. Long enumerations are cut short. Data and files are not part of it.
"""

_SMALL = (
    "JavaEnable GoodEvent CounterClass OS UserAgent IsRefresh RefererCategoryID URLCategoryID ResolutionWidth ResolutionHeight "
    "ResolutionDepth FlashMajor FlashMinor NetMajor NetMinor UserAgentMajor CookieEnable JavascriptEnable IsMobile MobilePhone "
    "TraficSourceID SearchEngineID AdvEngineID IsArtifical WindowClientWidth WindowClientHeight ClientTimeZone "
    "SilverlightVersion1 SilverlightVersion2 SilverlightVersion4 IsLink IsDownload IsNotBounce IsOldCounter IsEvent "
    "IsParameter DontCountHits WithHash Age Sex Income Interests Robotness HistoryLength HTTPError "
    "SocialSourceNetworkID ParamCurrencyID "
    "HasGCLID"
)
_WHOLE = (
    "CounterID ClientIP RegionID RefererRegionID URLRegionID IPNetworkID SilverlightVersion3 CodeVersion HID RemoteIP "
    "WindowName OpenerName SendTiming DNSTiming ConnectTiming ResponseStartTiming ResponseEndTiming FetchTiming CLID"
)
_TEXT = (
    "Title URL Referer FlashMinor2 UserAgentMinor MobilePhoneModel Params SearchPhrase PageCharset OriginalURL HitColor "
    "BrowserLanguage BrowserCountry SocialNetwork SocialAction SocialSourcePage ParamOrderID ParamCurrency OpenstatServiceName "
    "OpenstatCampaignID OpenstatAdID OpenstatSourceID UTMSource UTMMedium UTMCampaign UTMContent UTMTerm FromTag"
)


def _columns(**types: str) -> str:
    return ", ".join(f"{name} {kind}" for kind, names in types.items() for name in names.split())


HITS = ", ".join(
    [
        "WatchID Int64, EventTime DateTime, EventDate Date, UserID Int64, ClientEventTime DateTime, LocalEventTime DateTime",
        _columns(Int16=_SMALL, Int32=_WHOLE, String=_TEXT, Int64="FUniqID ParamPrice RefererHash URLHash"),
    ]
)
_LOW = "LowCardinality(String)"
_EVENTS = "'CreateEvent' = 2, 'IssuesEvent' = 7, 'PullRequestEvent' = 10, 'PushEvent' = 12, 'WatchEvent' = 15"
_ACTIONS = "'none' = 0, 'created' = 1, 'opened' = 5, 'closed' = 6, 'merged' = 20"
GITHUB = (
    f"file_time DateTime, event_type Enum8({_EVENTS}), actor_login {_LOW}, repo_name {_LOW}, created_at DateTime, "
    f"updated_at DateTime, action Enum8({_ACTIONS}), comment_id UInt64, body String, path String, "
    f"position Int32, line Int32, ref {_LOW}, "
    f"ref_type Enum8('none' = 0, 'branch' = 1, 'tag' = 2), creator_user_login {_LOW}, number UInt32, title String, "
    f"labels Array({_LOW}), state Enum8('none' = 0, 'open' = 1, 'closed' = 2), locked UInt8, assignee {_LOW}, "
    f"assignees Array({_LOW}), comments UInt32, closed_at DateTime, merged_at DateTime, merge_commit_sha String, "
    f"requested_reviewers Array({_LOW}), merged_by {_LOW}, review_comments UInt32, member_login {_LOW}"
)
_PAYMENTS = "'CSH' = 1, 'CRE' = 2, 'NOC' = 3, 'DIS' = 4, 'UNK' = 5"
_PLACES = "pickup_longitude pickup_latitude dropoff_longitude dropoff_latitude"
TRIPS = (
    f"trip_id UInt32, pickup_datetime DateTime, dropoff_datetime DateTime, {_columns(**{'Nullable(Float64)': _PLACES})}, "
    "passenger_count UInt8, "
    f"{_columns(Float32='trip_distance fare_amount extra tip_amount tolls_amount total_amount')}, "
    f"payment_type Enum8({_PAYMENTS}), pickup_ntaname {_LOW}, dropoff_ntaname {_LOW}"
)
_HOMES = "'terraced' = 1, 'semi-detached' = 2, 'detached' = 3, 'flat' = 4, 'other' = 0"
HOUSES = (
    f"price UInt32, date Date, postcode1 {_LOW}, postcode2 {_LOW}, type Enum8({_HOMES}), is_new UInt8, "
    f"duration Enum8('freehold' = 1, 'leasehold' = 2, 'unknown' = 0), addr1 String, addr2 String, street {_LOW}, "
    f"locality {_LOW}, town {_LOW}, district {_LOW}, county {_LOW}"
)
TOWERS = (
    "radio Enum8('' = 0, 'CDMA' = 1, 'GSM' = 2, 'LTE' = 3, 'NR' = 4, 'UMTS' = 5), mcc UInt16, net UInt16, area UInt16, "
    "cell UInt64, unit Int16, lon Float64, lat Float64, range UInt32, samples UInt32, changeable UInt8, "
    "created DateTime, updated DateTime, "
    "averageSignal UInt8"
)
FLIGHTS = (
    f"{_columns(String='callsign number icao24 registration typecode origin destination')}, "
    f"{_columns(DateTime='firstseen lastseen day')}, "
    f"{_columns(Float64='latitude_1 longitude_1 altitude_1 latitude_2 longitude_2 altitude_2')}"
)
PAGES = "time DateTime, project String, subproject String, path String, hits UInt64"

# Name, columns, clauses; what is taken for its hour and its key.
ADOPTED: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "hits": (
        HITS,
        "MergeTree ORDER BY (CounterID, EventDate, UserID, EventTime, WatchID)",
        "EventTime",
        ("WatchID", "EventTime"),
    ),
    "hits_v1": (
        HITS,
        "MergeTree PARTITION BY toYYYYMM(EventDate) ORDER BY (CounterID, EventDate, intHash32(UserID)) "
        "SAMPLE BY intHash32(UserID)",
        "EventTime",
        ("WatchID", "EventTime"),
    ),
    "trips": (
        TRIPS,
        "MergeTree PARTITION BY toYYYYMM(pickup_datetime) ORDER BY (pickup_datetime, dropoff_datetime)",
        "pickup_datetime",
        ("trip_id", "pickup_datetime"),
    ),
    "github_events": (
        GITHUB,
        "MergeTree ORDER BY (event_type, repo_name, created_at)",
        "created_at",
        ("event_type", "repo_name", "created_at"),
    ),
    "uk_price_paid": (
        HOUSES,
        "MergeTree ORDER BY (postcode1, postcode2, addr1, addr2)",
        "toDateTime(date, 'UTC')",
        ("postcode1", "postcode2", "addr1", "addr2", "date"),
    ),
    "wikistat": (PAGES, "MergeTree ORDER BY (path, time)", "time", ("time", "path")),
    "cell_towers": (TOWERS, "MergeTree ORDER BY (radio, mcc, net, created)", "created", ("radio", "mcc", "net", "created")),
    "opensky": (
        FLIGHTS,
        "MergeTree ORDER BY (origin, destination, callsign)",
        "firstseen",
        ("callsign", "origin", "destination", "firstseen"),
    ),
    "Orders": (
        "order_id UUID, tenant_id UInt32, at DateTime64(3, 'UTC'), amount Decimal(18, 2), "
        "items Array(Tuple(sku String, n UInt16)), hints Map(String, Nullable(Float64)), note "
        "Nullable(String), v UInt64, is_deleted UInt8, came DateTime DEFAULT now(), "
        "ip IPv4 DEFAULT '0.0.0.0', day Date MATERIALIZED toDate(at), `ver` UInt8 DEFAULT 0",
        "ReplacingMergeTree(ver, is_deleted) PARTITION BY toYYYYMMDD(at) ORDER BY (tenant_id, at, order_id)",
        "at",
        ("order_id", "tenant_id", "at"),
    ),
    "sessions": (
        "hour DateTime('UTC'), user UInt64, pages UInt32, Sign Int8",
        "CollapsingMergeTree(Sign) PARTITION BY toDate(hour) ORDER BY (hour, user)",
        "",
        ("user",),
    ),
}

# What is refused, and what would help.
REFUSED: dict[str, tuple[str, str, str]] = {
    "hits_local": ("id UInt64, n UInt64", "MergeTree ORDER BY id", "no column is a time .* ADD COLUMN event_time DateTime"),
    "totals": (
        "day DateTime, n UInt64",
        "SummingMergeTree ORDER BY day",
        "has the engine SummingMergeTree, .* PARTITION BY toYYYYMMDD",
    ),
    "users": (
        "id UInt64, name String, changed DateTime",
        "ReplacingMergeTree(changed) ORDER BY id",
        r"its ORDER BY is \(id\) and lacks changed: .* recreate it with ORDER BY \(id, changed\)",
    ),
    "visitors": (
        "at DateTime, visitor UInt64, ip IPv4",
        "MergeTree ORDER BY at",
        r"column ip: .* ALTER TABLE examples.visitors MODIFY COLUMN `ip` IPv4 DEFAULT",
    ),
    "twice": (
        "at DateTime, Url String, URL String",
        "MergeTree ORDER BY at",
        "column URL differs from another one in case alone",
    ),
}
